import fastifyPostgres from '@fastify/postgres'
import pg from 'pg'
import type { App } from '#kernel'
import type { Connections, Statement, Work } from '#contracts/database'
import { Batch, type BatchResult, type Prepared } from './batch.ts'
import { databaseAway, databaseBusy, isConnectionFailure, isStalePlan, statementError } from './errors.ts'

/** Milliseconds. These limits keep one bad statement or caller from blocking the database. */
const limits = {
  connectionTimeoutMillis: 5_000,
  statement_timeout: 30_000,
  idle_in_transaction_session_timeout: 60_000,
  // The server's own limit comes first. This one is for an answer that is lost in the network.
  query_timeout: 35_000,
}

/** A connection, valid for as long as `ConnectionPool.lease` lends it. */
export interface LeasedConnection {
  /** Throws synchronously when a value cannot be encoded. Nothing was sent in that case. */
  send(statements: readonly Statement[]): Promise<BatchResult>
}

export interface ConnectionPool {
  /** Lends a connection to `work`. Afterwards it returns to the pool, or is closed when it failed or `discard` was called. */
  lease<T>(work: (connection: LeasedConnection, discard: () => void) => Promise<T>): Promise<T>
  counts(): { readonly inUse: number; readonly waiting: number }
  /** Ends the connections. Does nothing for the pool of a listener, which ends with the listener. */
  close(): Promise<void>
}

/** Says whether the database may be used. */
export interface Gate {
  /** Makes the error that says why the database may not be used yet. Undefined: it may be used. */
  readonly closed: (() => Error) | undefined
}

interface PoolOptions {
  /** Called when an idle connection breaks. */
  readonly onError: (error: Error) => void
  /** While the gate is closed, no connection is lent. */
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
    // Fixes the form of times, whatever the server's default is.
    options: '-c TimeZone=UTC -c DateStyle=ISO',
  }
  const pool = listener ? await poolOf(listener, settings) : new pg.Pool(settings)
  const prepared = new WeakMap<pg.PoolClient, Prepared>()
  pool.on('connect', (client) => {
    prepared.set(client, new Map())
    // The statement reports the error of a connection that breaks while it is lent. Without this listener the error would end the process.
    client.on('error', () => {})
  })
  tellErrors(pool, onError)
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

/** Connections beside the pool, for a library with its own SQL. They are opened on demand and closed when idle. */
export function openConnections(dsn: string, size: number, gate: Gate, onError: (error: Error) => void): Connections {
  const pool = new pg.Pool({ ...limits, connectionString: dsn, application_name: 'agent-orc jobs', max: size })
  tellErrors(pool, onError)
  return {
    async query(text, values) {
      const { closed } = gate
      if (closed) throw closed()
      return pool.query(text, values)
    },
    close: () => pool.end(),
  }
}

function tellErrors(pool: pg.Pool, onError: (error: Error) => void): void {
  pool.on('error', (error: Error & { client?: unknown }) => {
    // pg attaches its client with all its settings to the error, and a log would print them.
    delete error.client
    onError(error)
  })
}

/** The pool that @fastify/postgres opens on a listener, and closes with it. */
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

/** How many connections each kind of work may hold at once. Units are limited by their lanes instead, and figures have those of reads. */
export type Limits = Readonly<Record<Exclude<Work, 'figures'>, number>>

/**
 * Milliseconds that a unit of work waits for its turn. Reads wait only for other reads, and no other work waits for them. Figures wait longer than two
 * of the longest statements (15 s each): a list that is halfway asks for its next turn here, and would break off.
 */
const patience: Readonly<Record<Work, number>> = { claims: 5_000, requests: 5_000, reads: 10_000, figures: 35_000 }

/** How much work of one tenant waits at most. Lists wait for long, and each is an open request; of the others requests a minute are bound enough. */
const mostWaiting: Readonly<Partial<Record<Work, number>>> = { figures: 200 }

interface Waiter {
  readonly enter: () => void
  readonly timer: NodeJS.Timeout
}

/** The connections of one kind of work. One tenant gets at most half of them unless given, and waiting tenants take turns. */
class Share {
  readonly #work: Work
  readonly #most: number
  #free: number
  readonly #held = new Map<string, number>()
  /** Waiting work by tenant; the first tenant is next. Work waits because its tenant has its maximum, or because no connection is free. */
  readonly #waiting = new Map<string, Set<Waiter>>()

  constructor(work: Work, size: number, most = Math.ceil(size / 2)) {
    this.#work = work
    this.#free = size
    this.#most = most
  }
  get waiting(): number {
    let count = 0
    for (const waiters of this.#waiting.values()) count += waiters.size
    return count
  }
  /** Undefined: enter at once. Each entry must be followed by one `leave`. */
  enter(tenant: string): Promise<void> | undefined {
    if (this.#free > 0 && this.#heldBy(tenant) < this.#most) this.#take(tenant)
    else return this.#wait(tenant)
  }
  leave(tenant: string): void {
    const held = this.#heldBy(tenant) - 1
    if (held === 0) this.#held.delete(tenant)
    else this.#held.set(tenant, held)
    this.#free++
    this.#admit()
  }
  #heldBy(tenant: string): number {
    return this.#held.get(tenant) ?? 0
  }
  #take(tenant: string): void {
    this.#free--
    this.#held.set(tenant, this.#heldBy(tenant) + 1)
  }
  #admit(): void {
    for (const [tenant, waiters] of this.#waiting) {
      if (this.#free === 0) return
      if (this.#heldBy(tenant) >= this.#most) continue
      const [first] = waiters
      this.#take(tenant)
      this.#forget(tenant, first!)
      // Move the tenant to the end, so that others come first.
      if (waiters.size > 0 && this.#waiting.delete(tenant)) this.#waiting.set(tenant, waiters)
      first!.enter()
    }
  }
  #wait(tenant: string): Promise<void> {
    if ((this.#waiting.get(tenant)?.size ?? 0) >= (mostWaiting[this.#work] ?? Infinity))
      return Promise.reject(databaseBusy())
    return new Promise((resolve, reject) => {
      const waiter: Waiter = {
        enter: resolve,
        timer: setTimeout(() => {
          this.#forget(tenant, waiter)
          reject(databaseBusy())
        }, patience[this.#work]),
      }
      const waiters = this.#waiting.get(tenant) ?? new Set()
      this.#waiting.set(tenant, waiters.add(waiter))
    })
  }
  #forget(tenant: string, waiter: Waiter): void {
    clearTimeout(waiter.timer)
    const waiters = this.#waiting.get(tenant)
    if (waiters?.delete(waiter) && waiters.size === 0) this.#waiting.delete(tenant)
  }
}

/** Divides connections among kinds of work, and those of each kind among tenants. Work without a tenant counts as one more. */
export class Shares {
  readonly #shares: Readonly<Record<Work, Share>>

  constructor({ claims, requests, reads }: Limits) {
    this.#shares = {
      claims: new Share('claims', claims),
      requests: new Share('requests', requests),
      reads: new Share('reads', reads),
      figures: new Share('figures', Math.max(1, reads - 1), 1),
    }
  }
  /** Runs `use` when its turn comes, and resolves to its result. Rejects with 503 `database_busy` when the wait is too long. */
  async within<T>(work: Work, tenant: string, use: () => Promise<T>): Promise<T> {
    const share = this.#shares[work]
    const turn = share.enter(tenant)
    if (turn) await turn
    try {
      return await (work === 'figures' ? this.within('reads', tenant, use) : use())
    } finally {
      share.leave(tenant)
    }
  }
  /** How many units of each kind of work wait for their turn. */
  waiting(): Readonly<Record<Work, number>> {
    const { claims, requests, reads, figures } = this.#shares
    return { claims: claims.waiting, requests: requests.waiting, reads: reads.waiting, figures: figures.waiting }
  }
}

interface Division {
  readonly size: number
  /** Connections outside all shares: the lanes of units. */
  readonly lanes: number
  readonly requestsPercent: number
  readonly readsPercent: number
}

/** Each kind of work has at least one connection. What lanes, requests and reads leave is for the claims outside the lanes. */
export function divide({ size, lanes, requestsPercent, readsPercent }: Division): Limits {
  const rest = size - lanes
  const part = (percent: number): number => Math.max(1, Math.floor((rest * percent) / 100))
  const [requests, reads] = [part(requestsPercent), part(readsPercent)]
  return { requests, reads, claims: Math.max(1, rest - requests - reads) }
}
