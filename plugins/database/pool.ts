import Fastify from 'fastify'
import fastifyPostgres from '@fastify/postgres'
import type pg from 'pg'
import type { Statement } from '#contracts/database'
import { Batch, type BatchResult, type Prepared } from './batch.ts'
import { databaseAway, isConnectionFailure, isStalePlan, poolExhausted, statementError } from './errors.ts'

/** Limits that keep one bad statement or caller from holding the database. Milliseconds. */
const limits = {
  connectionTimeoutMillis: 5_000,
  statement_timeout: 30_000,
  idle_in_transaction_session_timeout: 60_000,
  // Only met when the network swallows the answer: the server's own limit comes first.
  query_timeout: 35_000,
}

/** One connection, for as long as `Pool.lease` lends it. */
export interface Session {
  /** Throws, not rejects, when a value cannot be encoded: then nothing was sent. */
  send(statements: readonly Statement[]): Promise<BatchResult>
}

export interface Pool {
  /** Lends a connection. It goes back to the pool afterwards, or is closed when it failed or `discard` was called. */
  lease<T>(work: (session: Session, discard: () => void) => Promise<T>): Promise<T>
  counts(): { readonly inUse: number; readonly waiting: number }
  close(): Promise<void>
}

/** Whether the database may be used. */
export interface Gate {
  /** Makes the error that says why not yet; undefined once it may. */
  readonly closed: (() => Error) | undefined
}

export interface PoolOptions {
  /** Told when a connection breaks that nobody uses. */
  readonly onError: (error: Error) => void
  /** While it says why, no connection is lent. */
  readonly gate: Gate
}

/** A pool of @fastify/postgres on a private Fastify instance that never listens: the plugin needs a host, we only its pool. */
export async function openPool(dsn: string, size: number, options: PoolOptions): Promise<Pool> {
  const host = Fastify({ logger: false })
  await host.register(fastifyPostgres, {
    ...limits,
    connectionString: dsn,
    application_name: 'agent-orc',
    keepAlive: true,
    max: size,
    // Idle connections stay: opening one costs more than keeping it, and pg would set a timer at every release.
    idleTimeoutMillis: 0,
    // Times arrive in one form, whatever the server's default is.
    options: '-c TimeZone=UTC -c DateStyle=ISO',
  })
  const { pool } = host.getDecorator<{ pool: pg.Pool }>('pg')
  const prepared = new WeakMap<pg.PoolClient, Prepared>()
  pool.on('connect', (client) => {
    prepared.set(client, new Map())
    // A connection that breaks while lent out is reported to its statement; without a listener it would end the process.
    client.on('error', () => {})
  })
  pool.on('error', options.onError)
  return {
    async lease(work) {
      const { closed } = options.gate
      if (closed) throw closed()
      const client = await pool.connect().catch((error: Error) => {
        throw error.message === 'timeout exceeded when trying to connect' ? poolExhausted(error) : databaseAway(error)
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
    close: () => host.close(),
  }
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
