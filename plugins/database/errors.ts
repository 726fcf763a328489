import { type AppError, unavailable } from '#kernel'
import { databaseErrors, sqlState } from '#contracts/database'

// SQLSTATE classes of connection exceptions, shutdowns, and too many connections.
const awayStates = /^(08|57P0|53300)/

/** True when no server answered, or a server that is starting, stopping or full. The same call may work a moment later. */
export function isServerAway(error: unknown): boolean {
  const state = sqlState(error)
  // Node's and pg's own errors (refused, reset, terminated, timed out) carry no SQLSTATE, though EPIPE looks like one.
  return state === undefined || 'syscall' in (error as object) || awayStates.test(state)
}

/** True when the connection failed, not the statement. The connection cannot be used again. */
export function isConnectionFailure(error: unknown): boolean {
  const { severity } = error as { severity?: string }
  return severity === 'FATAL' || severity === 'PANIC' || isServerAway(error)
}

// True when a migration of a newer release changed the result type of a prepared statement. A new connection prepares the statement anew.
export const isStalePlan = (error: unknown): boolean =>
  sqlState(error) === '0A000' && (error as Error).message.includes('cached plan must not change result type')

const away = (message: string, cause: unknown): AppError => unavailable({ message, retryable: true, cause })

export const databaseAway = (cause: unknown): AppError =>
  away('The database does not answer; try again shortly.', cause)

export const schemaAway = (cause: unknown): AppError =>
  away('The database is not at the schema of this release yet; try again shortly.', cause)

export const databaseBusy = (cause?: unknown): AppError =>
  databaseErrors.databaseBusy({ cause, headers: { 'retry-after': '1' } })

/** The index of the refused statement in its batch. */
export const placeOf = (error: unknown): number | undefined => (error as { place?: number } | undefined)?.place

/** A copy of a statement's error for logs, without PostgreSQL's detail about the row's values. */
export function statementError(error: Error, place: number): Error {
  const known = error as Error & { detail?: string; where?: string; place?: number }
  delete known.detail
  delete known.where
  known.place = place
  // The error was made inside a socket event. From here its stack leads to the caller.
  Error.captureStackTrace(error, statementError)
  return error
}
