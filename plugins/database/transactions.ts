import {
  type Database,
  databaseErrors,
  sqlState,
  type Statement,
  type SystemTx,
  type TenantTx,
  type Work,
} from '#contracts/database'
import { placeOf } from './errors.ts'
import type { ConnectionPool, LeasedConnection, Shares } from './pool.ts'
import { createUnits, GroupRefused, type Unit } from './units.ts'

type OfWork = Pick<Database, 'batch' | 'systemBatch' | 'tenant' | 'system'>

interface Transactions extends Pick<Database, 'unit'> {
  of(work: Work): OfWork
}

// The setting is local to the transaction (`true`) on purpose: a session setting would leak to the next tenant when the pool reuses the connection.
const set = (name: string, value: string): Statement => ({
  name: 'ao_set',
  text: 'SELECT set_config($1, $2, true)',
  values: [name, value],
})
/** Sets the time limit of statements, in milliseconds. Claims have only the limit of the connection. */
const within = (ms: number): string => `set_config('statement_timeout', '${ms}', true)`
const shortly = within(10_000)
/**
 * A connection is a tenant's share of one processor: with workers beside it one statement would take three, and starting them costs more than most
 * reads. Claims find their rows by key, and get no workers anyway.
 */
const alone = `set_config('max_parallel_workers_per_gather', '0', true)`
/**
 * A statement of a tenant finds its rows by an index; to read a whole table is to read the rows of all others. PostgreSQL prefers that while a table
 * is small, and a named statement keeps such a plan for hundreds of uses, whatever the table has become.
 */
const byIndex = `set_config('enable_seqscan', 'off', true)`
/**
 * Claims and units find single rows by key. While a table has few pages, a bitmap of all rows of the tenant seems as cheap as a key, and that plan
 * stays as well. Other work needs bitmaps: it looks for keys by one column or another, and reads spans of lists.
 */
const byKey = `set_config('enable_bitmapscan', 'off', true)`
/** Units wait for a locked row so long, in milliseconds: those of all tenants wait with them. */
const lockMs = 200
/** The kinds of work, and units in their lanes or aside. */
type Kind = Work | 'units' | 'aside'
const settings: Readonly<Record<Kind, string>> = {
  units: `${byKey}, set_config('lock_timeout', '${lockMs}', true)`,
  aside: `${byKey}, ${shortly}`,
  claims: byKey,
  requests: `${shortly}, ${alone}`,
  reads: `${within(15_000)}, ${alone}`,
  figures: `${within(15_000)}, ${alone}`,
}
/** All settings come with the tenant, because poolers refuse a connection that asks for them. */
const setTenant = (tenantId: string, work: Kind): Statement => ({
  name: `ao_set_${work}`,
  text: `SELECT set_config('app.tenant_id', $1, true), ${byIndex}, ${settings[work]}`,
  values: [tenantId],
})
/** Work without a tenant takes turns like one more tenant. */
const noTenant = ''
/** SQLSTATE of a statement that took too long. */
const cancelled = '57014'
const begin: Statement = { name: 'ao_begin', text: 'BEGIN' }
const commit: Statement = { name: 'ao_commit', text: 'COMMIT' }
const rollback: Statement = { name: 'ao_rollback', text: 'ROLLBACK' }

/** `shares` says which work may use how many connections of the pool. Units are bounded by their lanes. */
export function createTransactions(pool: ConnectionPool, shares: Shares): Transactions {
  /** Set the tenant only where it changes: most groups have one tenant. */
  const together = async (units: readonly Unit[], kind: 'units' | 'aside'): Promise<object[][]> => {
    const statements: Statement[] = []
    const places: number[] = []
    units.forEach(({ tenantId, statement }, i) => {
      if (tenantId !== units[i - 1]?.tenantId) statements.push(setTenant(tenantId, kind))
      places.push(statements.push(statement) - 1)
    })
    try {
      const { rows } = await pool.lease((connection) => connection.send(statements))
      return places.map((place) => rows[place]!)
    } catch (error) {
      throw new GroupRefused(error, places.indexOf(placeOf(error) ?? -1))
    }
  }
  const aside = (units: readonly Unit[]): Promise<object[][]> =>
    shares
      .within('requests', units[0]!.tenantId, () => together(units, 'aside'))
      .catch((error: unknown) => {
        throw error instanceof GroupRefused ? error : new GroupRefused(error, -1)
      })
  const unit = createUnits((units) => together(units, 'units'), aside) as Database['unit']
  return { unit, of: (work) => transactionsOf(work, pool, shares) }
}

/** Units of work of one kind, which share the connections of that kind. */
function transactionsOf(work: Work, pool: ConnectionPool, shares: Shares): OfWork {
  const batch = async <Rows>(
    tenant: string,
    before: readonly Statement[],
    statements: readonly Statement[],
  ): Promise<Rows> => {
    if (statements.length === 0) return [] as Rows
    const send = () => pool.lease((connection) => connection.send([...before, ...statements]))
    const { rows } = await shares.within(work, tenant, send).catch((error: unknown) => {
      throw work !== 'claims' && sqlState(error) === cancelled
        ? databaseErrors.databaseTooSlow({ cause: error })
        : error
    })
    return rows.slice(before.length) as Rows
  }
  return {
    batch: (tenantId, statements) => batch(tenantId, [setTenant(tenantId, work)], statements),
    systemBatch: (statements, settings = {}) =>
      batch(
        noTenant,
        Object.entries(settings).map(([name, value]) => set(name, value)),
        statements,
      ),
    tenant: (tenantId, use) =>
      shares.within(work, tenantId, () =>
        interactive(pool, [begin, setTenant(tenantId, work)], (tx) => use({ tenantId, ...tx } as TenantTx)),
      ),
    system: (use) => shares.within(work, noTenant, () => interactive(pool, [begin], (tx) => use(tx as SystemTx))),
  }
}

type Statements = Pick<TenantTx, 'query' | 'queries' | 'atEnd'>

/** A transaction whose statements depend on each other. Its opening travels with the first statement, so it costs no round trip. */
function interactive<T>(
  pool: ConnectionPool,
  opening: readonly Statement[],
  work: (statements: Statements) => Promise<T>,
): Promise<T> {
  return pool.lease(async (connection, discard) => {
    const tx = statementsInOrder(connection, opening)
    try {
      const result = await work(tx.statements)
      await tx.finish(commit)
      return result
    } catch (error) {
      // If the rollback cannot be sent, the connection is closed, which also rolls back.
      await tx.finish(rollback).catch(discard)
      throw error
    }
  })
}

function statementsInOrder(connection: LeasedConnection, opening: readonly Statement[]) {
  let begun = false
  let over = false
  let failure: unknown
  let last: Promise<unknown> = Promise.resolve()
  let closing: Statement[] = []
  const send = (statements: readonly Statement[]): ReturnType<LeasedConnection['send']> => {
    const sent = connection.send(begun ? statements : [...opening, ...statements])
    begun = true
    return sent
  }
  const queries = (statements: readonly Statement[]): Promise<object[][]> => {
    // The connection may belong to another tenant by now, so a late statement is refused.
    if (over) return Promise.reject(new Error('This transaction is over: await every query inside its function.'))
    if (statements.length === 0) return Promise.resolve([])
    const result = last.then(async () => (await send(statements)).rows.slice(-statements.length))
    last = result.catch((error: unknown) => (failure ??= error))
    return result
  }
  const query = async (statement: Statement): Promise<object[]> => (await queries([statement]))[0]!
  return {
    statements: { query, queries, atEnd: (statement: Statement) => void closing.push(statement) } as Statements,
    /** Commits or rolls back, once. */
    async finish(statement: Statement): Promise<void> {
      if (!over) {
        over = true
        await last
      }
      const before = statement === commit ? closing : []
      closing = []
      if (!begun && before.length === 0) return
      const { tag } = await send([...before, statement])
      begun = false
      // After a failed statement PostgreSQL answers COMMIT with ROLLBACK. That must not count as success.
      if (tag !== statement.text) {
        throw new Error('The transaction was rolled back, because the error of a failed statement was ignored.', {
          cause: failure,
        })
      }
    },
  }
}
