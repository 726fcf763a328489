import { errorTable } from './errors.ts'
import type { App } from '../http/app.ts'
import { capability } from '../plugin.ts'

export interface Statement {
  /** The statement is prepared once per connection under this name. The same name must always mean the same text. */
  readonly name?: string
  readonly text: string
  readonly values?: readonly unknown[]
}

declare const tenanted: unique symbol
declare const untenanted: unique symbol

interface Transaction {
  /** Runs one statement; resolves to its rows. */
  query<Row extends object>(statement: Statement): Promise<Row[]>
  /** Runs several statements in order, in one round trip. Resolves to the rows of each. */
  queries<Rows extends object[][]>(statements: readonly Statement[]): Promise<Rows>
  /** Runs a statement after all others, in the round trip of the commit. If the server refuses it, the transaction is rolled back. */
  atEnd(statement: Statement): void
}

/** A transaction in which row security shows the rows of one tenant. Store functions take it as their first argument. */
export interface TenantTx extends Transaction {
  readonly tenantId: string
  readonly [tenanted]: true
}

/** A transaction without a tenant: row security hides every tenanted row. For migrations, sweeps and untenanted tables. */
export interface SystemTx extends Transaction {
  readonly [untenanted]: true
}

/**
 * The purpose of a unit of work. Each kind has its own connections and time limit, and no tenant gets all connections of a kind, so that nobody
 * waits behind another caller's reads. `claims`: runs that begin, continue and end. `reads`: large or slow reads, such as lists, logs and figures.
 * `figures`: reads that go through all that a tenant has. Each has a connection of `reads`, but a tenant has one of these at a time, and all together leave
 * one to lists. `requests`: everything else.
 */
export type Work = 'claims' | 'requests' | 'reads' | 'figures'

export interface UnitOptions {
  /** Names the rows that the unit locks. All units that may lock the same row give the same text, which prevents deadlocks. */
  readonly order?: string
  /** Approximate bytes that the unit writes, for units that write many. */
  readonly bytes?: number
}

/**
 * The only access to PostgreSQL. Connection failures are thrown as AppError `unavailable` (503, retryable). A statement's own failure keeps its
 * SQLSTATE in `code`.
 */
export interface Database {
  /**
   * The role has no database: every call rejects with 503 `database_required`. Such a role keeps runs and profiles in memory, and
   * other routes use `needsDatabase`.
   */
  readonly absent?: true
  /** The same database for another kind of work than `requests`, e.g. `database.as('reads').batch(…)` for a list. */
  as(work: Work): Database
  /** Opens a transaction with `app.tenant_id` set inside it, and commits when `work` resolves. */
  tenant<T>(tenantId: string, work: (tx: TenantTx) => Promise<T>): Promise<T>
  system<T>(work: (tx: SystemTx) => Promise<T>): Promise<T>
  /**
   * The fast path for statements that do not depend on each other's rows in JavaScript: one transaction and one network round trip, in which the
   * tenant is set first. Resolves to the rows of each statement. All or nothing.
   */
  batch<Rows extends object[][]>(tenantId: string, statements: readonly Statement[]): Promise<Rows>
  /**
   * The hot path: one statement that is a complete unit of work. A single unit leaves at once. Under load, units of many callers share a
   * transaction and a round trip, each with its own tenant set. Resolves to its rows once they are committed. If the server refuses a unit, only
   * that unit fails, and the others run again. Units have connections of their own, as claims.
   */
  unit<Row extends object>(tenantId: string, statement: Statement, options?: UnitOptions): Promise<Row[]>
  /** Like `batch`, but without a tenant, e.g. for the look-up of a key, which finds the tenant. `settings` hold for the transaction only. */
  systemBatch<Rows extends object[][]>(
    statements: readonly Statement[],
    settings?: Readonly<Record<string, string>>,
  ): Promise<Rows>
  /** Listens to a NOTIFY channel; the listener gets the payload. It reconnects after an outage, but notifications that were sent meanwhile are lost. */
  listen(channel: string, listener: (payload: string) => void): Promise<() => Promise<void>>
  /** A few separate connections, for a library with tables in its own schema. No tenant is set on them, so row security hides every tenanted row. */
  connections(size: number): Connections
  /** Proves that this process lives, from a thread with its own connection. Nothing is started before the first pulse. */
  heartbeat(options: HeartbeatOptions): Heartbeat
}

export interface Connections {
  /** Runs SQL; without values it may contain several statements. Rejects with 503 until the schema is ready. */
  query(text: string, values?: unknown[]): Promise<{ rows: object[] }>
  close(): Promise<void>
}

export interface HeartbeatOptions {
  /** A statement without a tenant, which runs with the values of the last pulse. If it returns no row, the renewed row is gone. */
  readonly renew: Pick<Statement, 'name' | 'text'>
  readonly everyMs: number
  /**
   * Milliseconds without a pulse, counted while the process is running at all, after which the process counts as hung. Nothing is renewed until the
   * next pulse.
   */
  readonly hungMs: number
  /** Called when there was no row to renew. Nothing is renewed until the next pulse. */
  onLost(): void
  /** Called with the reason when the thread cannot renew. The thread keeps trying. */
  onFailure(error: Error): void
}

/** The heartbeat does not keep the process running, and ends with it. */
export interface Heartbeat {
  /** True while the heartbeat renews. While false, before its start or during failures, the caller must renew by itself. */
  readonly beats: boolean
  /** Call it every `everyMs` from the thread that must be proved alive. */
  pulse(values: readonly (string | number)[]): void
  close(): Promise<void>
}

export const Database = capability<Database>('core.database')

export const databaseErrors = errorTable('database', {
  databaseRequired: {
    status: 503,
    message:
      'This needs a PostgreSQL database, which this server does not have: start the roles that have one, with POSTGRES_DSN set.',
  },
  databaseBusy: {
    status: 503,
    retry: true,
    message: 'All database connections for requests of this kind are in use; try again shortly.',
  },
  databaseTooSlow: {
    status: 503,
    retry: 'later',
    message: 'The database took too long; request less at once: a page, a narrower filter, a shorter window.',
  },
})

/** For a scope whose routes all need the database. In a role without one, each route answers 503 after the guard has admitted the caller. */
export function needsDatabase(app: App, { absent }: Pick<Database, 'absent'>): void {
  if (!absent) return
  // In such a role no request reaches the schemas of these routes, and compiling them takes most of the start.
  app.setValidatorCompiler(() => () => true).setSerializerCompiler(() => JSON.stringify)
  app.addHook('onRequest', async () => {
    throw databaseErrors.databaseRequired()
  })
}

/** The database. Undefined in a role without one, whether the role lists `plugins/database/none` or no database at all. */
export const presentDatabase = (database: Database | undefined): Database | undefined =>
  database?.absent ? undefined : database

/** SQLSTATE of an error raised by a statement, e.g. `23505` for a unique violation. */
export const sqlState = (error: unknown): string | undefined => {
  const code = (error as { code?: unknown } | undefined)?.code
  return typeof code === 'string' && /^[0-9A-Z]{5}$/.test(code) ? code : undefined
}

/** Name of the violated constraint, when PostgreSQL names one. */
export const violatedConstraint = (error: unknown): string | undefined => {
  const name = (error as { constraint?: unknown } | undefined)?.constraint
  return typeof name === 'string' ? name : undefined
}

/** The address of a server that this role starts, e.g. the embedded one for development. `database` uses it when it has no DSN. */
export interface DatabaseServer {
  readonly dsn: string
}
export const DatabaseServer = capability<DatabaseServer>('core.database-server')
