import type { FastifyBaseLogger } from 'fastify'
import { retry } from '#kit'
import { databaseAway, schemaAway } from './errors.ts'
import type { Gate } from './pool.ts'
import { isFinal, NotYet } from './server.ts'

/** The boot waits this long for a database that takes its time, e.g. for a long migration; it goes on behind the boot's back. */
const bootMs = 10_000
const waits = { firstMs: 250, longestMs: 2_000 }

export interface OpeningOptions {
  /** One attempt; resolves to the migrations it applied. */
  readonly prepare: () => Promise<readonly string[]>
  /** The boot fails when the database is not there within 10 s; otherwise it goes on without it. */
  readonly required: boolean
  readonly log: FastifyBaseLogger
  readonly stopping: AbortSignal
  /** Called when an operator has to act after the boot is over: this process must not go on. */
  readonly onRefused: (error: Error) => void
}

/**
 * Tries to make the database usable, again and again until it is. Resolves when it is, or when the boot should go on without
 * it; rejects when an operator has to act. The gate opens once, for good: an outage after that shows in each connection.
 */
export async function openDatabase(options: OpeningOptions): Promise<Gate> {
  const { log, stopping, required } = options
  let reason = new NotYet('The database is being prepared.')
  const gate: { closed: Gate['closed'] } = {
    closed: () => (reason.cause === undefined ? schemaAway(reason) : databaseAway(reason)),
  }
  let booting = true
  const attempt = async (): Promise<void> => {
    for (const name of await options.prepare()) log.info(`applied migration ${name}`)
    if (!booting) log.info('the database can be used')
    gate.closed = undefined
  }
  const mayPass = (error: unknown): boolean => {
    // While the boot waits, a wrong password ends it. Later only what could do harm, or can never pass, ends the process.
    if (!(error instanceof NotYet) && (booting || isFinal(error))) return false
    const { message } = error as Error
    if (reason.message !== message) log.warn(`waiting: ${message}`)
    reason = error instanceof NotYet ? error : new NotYet(message, { cause: error })
    if (!required) goOn()
    return true
  }
  let goOn = (): void => {}
  await new Promise<void>((resolve, reject) => {
    goOn = () => {
      booting = false
      resolve()
    }
    const late = setTimeout(() => (required ? reject(reason) : goOn()), bootMs)
    retry(attempt, { ...waits, signal: stopping, mayPass })
      .then(resolve, (error: Error) => {
        if (booting) reject(error)
        else if (!stopping.aborted) options.onRefused(error)
      })
      .finally(() => clearTimeout(late))
  })
  return gate
}
