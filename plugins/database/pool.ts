import fastifyPostgres from '@fastify/postgres'
import pg from 'pg'
import type { App } from '#kernel'
import type { Statement } from '#contracts/database'
import { Batch, type BatchResult, type Prepared } from './batch.ts'
import { databaseAway, databaseBusy, isConnectionFailure, isStalePlan, statementError } from './errors.ts'

/** Limits that keep one bad statement or caller from holding the database. Milliseconds. */
const limits = {
  connectionTimeoutMillis: 5_000,
  statement_timeout: 30_000,
  idle_in_transaction_session_timeout: 60_000,
  // The server's own limit comes first; this one is for an answer that the network has lost.
  query_timeout: 35_000,
}

/** One connection, for as long as `ConnectionPool.lease` lends it. */
export interface LeasedConnection {
  /** Throws, not rejects, when a value cannot be encoded: then nothing was sent. */
  send(statements: readonly Statement[]): Promise<BatchResult>
}

export interface ConnectionPool {
  /** Lends a connection. It goes back to the pool afterwards, or is closed when it failed or `discard` was called. */
  lease<T>(work: (connection: LeasedConnection, discard: () => void) => Promise<T>): Promise<T>
  counts(): { readonly inUse: number; readonly waiting: number }
  /** Ends the connections. Those of a listener end with it, and this does nothing. */
  close(): Promise<void>
}

/** Whether the database may be used. */
export interface Gate {
  /** Makes the error that says why not yet; undefined once it may. */
  readonly closed: (() => Error) | undefined
}

export interface PoolOptions {
  /** Called when an idle connection breaks. */
  readonly onError: (error: Error) => void
  /** While it is closed, no connection is lent. */
  readonly gate: Gate
  /** The listener that owns the connections; undefined in a command that has no listener. */
  readonly listener?: App | undefined
}

export async function openPool(dsn: string, size: number, options: PoolOptions): Promise<ConnectionPool> {
  const { listener, gate, onError } = options
  const settings = {
    ...limits,
    connectionString: dsn,
    application_name: 'agent-orc',
    keepAlive: true,
    max: size,
    // Idle connections stay: opening one costs more than keeping it, and pg would set a timer at every release.
    idleTimeoutMillis: 0,
    // Times arrive in one form, whatever the server's default is.
    options: '-c TimeZone=UTC -c DateStyle=ISO',
  }
  const pool = listener ? await poolOf(listener, settings) : new pg.Pool(settings)
  const prepared = new WeakMap<pg.PoolClient, Prepared>()
  pool.on('connect', (client) => {
    prepared.set(client, new Map())
    // A connection that breaks while lent out is reported to its statement; without a listener it would end the process.
    client.on('error', () => {})
  })
  pool.on('error', (error: Error & { client?: unknown }) => {
    // pg attaches its client, with all its settings, which a log would print.
    delete error.client
    onError(error)
  })
  return {
    async lease(work) {
      const { closed } = gate
      if (closed) throw closed()
      const client = await pool.connect().catch((error: Error) => {
        throw error.message === 'timeout exceeded when trying to connect' ? databaseBusy(error) : databaseAway(error)
      })
      let broken = false
      const discard = (): void => void (broken = true)
      const names = prepared.get(client)!
      try {
        return await work({ send: (statements) => answer(client, new Batch(statements, names), discard) }, discard)
      } finally {
        client.release(broken)
      }
    },
    counts: () => ({ inUse: pool.totalCount - pool.idleCount, waiting: pool.waitingCount }),
    close: async () => (listener ? undefined : pool.end()),
  }
}

/** The pool that @fastify/postgres opens on a listener, and ends when that has closed. */
async function poolOf(listener: App, settings: pg.PoolConfig): Promise<pg.Pool> {
  await listener.register(fastifyPostgres, settings)
  return listener.getDecorator<{ pool: pg.Pool }>('pg').pool
}

async function answer(client: pg.PoolClient, batch: Batch, discard: () => void): Promise<BatchResult> {
  try {
    await new Promise<void>((resolve, reject) => {
      batch.callback = (error) => (error ? reject(error) : resolve())
      client.query(batch)
    })
  } catch (error) {
    if (!isConnectionFailure(error) && !isStalePlan(error)) throw statementError(error as Error, batch.completed)
    discard()
    throw databaseAway(error)
  }
  return batch.result()
}
