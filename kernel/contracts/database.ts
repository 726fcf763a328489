import { errorTable } from './errors.ts'
import type { App } from '../http/app.ts'
import { capability } from '../plugin.ts'

export interface Statement {
  /** Prepared once per connection under this name; the same name must always mean the same text. */
  readonly name?: string
  readonly text: string
  readonly values?: readonly unknown[]
}

declare const tenanted: unique symbol
declare const untenanted: unique symbol

interface Transaction {
  /** Runs one statement; resolves to its rows. */
  query<Row extends object>(statement: Statement): Promise<Row[]>
  /** The same of several, one after the other, in one round trip. */
  queries<Rows extends object[][]>(statements: readonly Statement[]): Promise<Rows>
  /** Runs a statement behind all others, in the round trip of the commit. What it refuses rolls the transaction back. */
  atEnd(statement: Statement): void
}

/** A transaction in which row security shows one tenant's rows. Store functions take it first. */
export interface TenantTx extends Transaction {
  readonly tenantId: string
  readonly [tenanted]: true
}

/** A transaction without a tenant: row security hides every tenanted row. For migrations, sweeps and untenanted tables. */
export interface SystemTx extends Transaction {
  readonly [untenanted]: true
}

/**
 * What a unit of work is for. Each kind has connections and a time limit of its own, and no tenant has all those of a kind, so that
 * nobody waits behind what another one reads. `claims`: runs that begin, go on and end. `reads`: what may be large or slow, such as
 * lists, logs and figures. `requests`: everything else.
 */
export type Work = 'claims' | 'requests' | 'reads'

export interface UnitOptions {
  /** Names the rows that the unit locks: all units that may lock a row give the same text. It prevents deadlocks. */
  readonly order?: string
  /** About how many bytes it writes, for units that write many. */
  readonly bytes?: number
}

/**
 * The only access to PostgreSQL. Failures of the connection itself are thrown as AppError `unavailable` (503, retryable);
 * a statement's own failure keeps its SQLSTATE in `code`.
 */
export interface Database {
  /**
   * The role has no database: every call rejects with 503 `database_required`. Such a role keeps runs and profiles in memory, and
   * other routes use `needsDatabase`.
   */
  readonly absent?: true
  /** The same for work of another kind than `requests`, e.g. `database.as('reads').batch(…)` for a list. */
  as(work: Work): Database
  /** Opens a transaction with `app.tenant_id` set inside it, and commits when `work` resolves. */
  tenant<T>(tenantId: string, work: (tx: TenantTx) => Promise<T>): Promise<T>
  system<T>(work: (tx: SystemTx) => Promise<T>): Promise<T>
  /**
   * The fast path of a unit of work whose statements do not depend on each other's rows in JavaScript: one transaction,
   * one network round trip, tenant set first. Resolves to the rows of each statement. All or nothing.
   */
  batch<Rows extends object[][]>(tenantId: string, statements: readonly Statement[]): Promise<Rows>
  /**
   * The hot path: one statement that is a unit of work by itself. Alone it leaves at once; under load units of many callers
   * share a transaction and a round trip, each with its own tenant set. Resolves to its rows once they are committed. A unit
   * that the server refuses fails alone: the others are run again. Units have connections of their own, as claims.
   */
  unit<Row extends object>(tenantId: string, statement: Statement, options?: UnitOptions): Promise<Row[]>
  /** As `batch`, without a tenant: e.g. the look-up of a key, which finds out the tenant. `settings` hold for the transaction only. */
  systemBatch<Rows extends object[][]>(
    statements: readonly Statement[],
    settings?: Readonly<Record<string, string>>,
  ): Promise<Rows>
  /** Listens to a NOTIFY channel; the listener gets the payload. It reconnects when the server could not be reached; notifications sent meanwhile are lost. */
  listen(channel: string, listener: (payload: string) => void): Promise<() => Promise<void>>
  /**
   * A few connections of its own, for a library that keeps its tables in a schema of its own. No tenant is set on them: row
   * security hides every tenanted row.
   */
  connections(size: number): Connections
  /** Proves that this process lives, from a thread with its own connection. Nothing is started before the first pulse. */
  heartbeat(options: HeartbeatOptions): Heartbeat
}

export interface Connections {
  /** Runs SQL, several statements where there are no values. Rejects with 503 until the schema is there. */
  query(text: string, values?: unknown[]): Promise<{ rows: object[] }>
  close(): Promise<void>
}

export interface HeartbeatOptions {
  /** Renews something without a tenant, with the values of the last pulse. No row in return: what it renews is gone. */
  readonly renew: Pick<Statement, 'name' | 'text'>
  readonly everyMs: number
  /** Without a pulse for so long, counted while the process runs at all, the process is hung and nothing is renewed until the next one. */
  readonly hungMs: number
  /** There was no row to renew. Nothing is renewed before the next pulse. */
  onLost(): void
  /** The thread cannot renew, and why. It goes on trying. */
  onFailure(error: Error): void
}

/** It does not keep a process running, and ends with it. */
export interface Heartbeat {
  /** True while it renews. Otherwise, before its start or while it fails, the caller must renew by itself. */
  readonly beats: boolean
  /** To be called every `everyMs`, by the thread whose life is to be proved. */
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

/** For a scope whose routes all need the database. In a role without one each of them answers 503, after the guard has let its caller in. */
export function needsDatabase(app: App, { absent }: Pick<Database, 'absent'>): void {
  if (!absent) return
  // No request reaches the schemas of these routes, and compiling them takes most of the start.
  app.setValidatorCompiler(() => () => true).setSerializerCompiler(() => JSON.stringify)
  app.addHook('onRequest', async () => {
    throw databaseErrors.databaseRequired()
  })
}

/** The database; undefined in a role without one, whether it lists `plugins/database/none` or no database at all. */
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

/** Where a server started by this role listens, e.g. the embedded one of development. `database` uses it when it has no DSN. */
export interface DatabaseServer {
  readonly dsn: string
}
export const DatabaseServer = capability<DatabaseServer>('core.database-server')
