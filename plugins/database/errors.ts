import { type AppError, unavailable } from '#kernel'
import { databaseErrors, sqlState } from '#contracts/database'

// Connection exceptions, shutdowns, too many connections.
const awayStates = /^(08|57P0|53300)/

/** True when no server answered, or one that is starting, stopping or full: the same may work a moment later. */
export function isServerAway(error: unknown): boolean {
  const state = sqlState(error)
  // Node's and pg's own errors (refused, reset, terminated, timed out) carry no SQLSTATE, though EPIPE looks like one.
  return state === undefined || 'syscall' in (error as object) || awayStates.test(state)
}

/** True when the connection failed, not the statement: it cannot be used again. */
export function isConnectionFailure(error: unknown): boolean {
  const { severity } = error as { severity?: string }
  return severity === 'FATAL' || severity === 'PANIC' || isServerAway(error)
}

// The type of a result changed under a prepared statement, by a migration of a newer release. A new connection prepares anew.
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

/** A statement's own error for a log, without what PostgreSQL says about the values of the row. */
export function statementError(error: Error, place: number): Error {
  const known = error as Error & { detail?: string; where?: string; place?: number }
  delete known.detail
  delete known.where
  known.place = place
  // It was made inside a socket event; from here its stack leads to the caller.
  Error.captureStackTrace(error, statementError)
  return error
}
