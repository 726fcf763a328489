import type { Database, Statement, SystemTx, TenantTx } from '#contracts/database'
import { placeOf } from './errors.ts'
import type { Pool, Session } from './pool.ts'
import { createUnits, GroupRefused, type Unit } from './units.ts'

type Transactions = Omit<Database, 'listen'>

// Transaction-local on purpose (`true`): a setting of the session would be the next tenant's when the pool reuses the connection.
const set = (name: string, value: string): Statement => ({
  name: 'ao_set',
  text: 'SELECT set_config($1, $2, true)',
  values: [name, value],
})
const setTenant = (tenantId: string): Statement => set('app.tenant_id', tenantId)
const begin: Statement = { name: 'ao_begin', text: 'BEGIN' }
const commit: Statement = { name: 'ao_commit', text: 'COMMIT' }
const rollback: Statement = { name: 'ao_rollback', text: 'ROLLBACK' }

export function createTransactions(pool: Pool): Transactions {
  const batch = async <Rows>(before: readonly Statement[], statements: readonly Statement[]): Promise<Rows> => {
    if (statements.length === 0) return [] as Rows
    const { rows } = await pool.lease((session) => session.send([...before, ...statements]))
    return rows.slice(before.length) as Rows
  }
  /** The tenant is set anew only where it changes: most groups have one. */
  const together = async (units: readonly Unit[]): Promise<object[][]> => {
    const statements: Statement[] = []
    const places: number[] = []
    units.forEach(({ tenantId, statement }, i) => {
      if (tenantId !== units[i - 1]?.tenantId) statements.push(setTenant(tenantId))
      places.push(statements.push(statement) - 1)
    })
    try {
      const { rows } = await pool.lease((session) => session.send(statements))
      return places.map((place) => rows[place]!)
    } catch (error) {
      throw new GroupRefused(error, places.indexOf(placeOf(error) ?? -1))
    }
  }
  return {
    unit: createUnits(together) as Database['unit'],
    batch: (tenantId, statements) => batch([setTenant(tenantId)], statements),
    systemBatch: (statements, settings = {}) =>
      batch(
        Object.entries(settings).map(([name, value]) => set(name, value)),
        statements,
      ),
    tenant: (tenantId, work) =>
      interactive(pool, [begin, setTenant(tenantId)], (query) => work({ tenantId, query } as TenantTx)),
    system: (work) => interactive(pool, [begin], (query) => work({ query } as SystemTx)),
  }
}

type Query = TenantTx['query']

/** A transaction whose statements depend on each other. Its opening travels with the first statement, so it costs no round trip. */
function interactive<T>(pool: Pool, opening: readonly Statement[], work: (query: Query) => Promise<T>): Promise<T> {
  return pool.lease(async (session, discard) => {
    const tx = statementsInOrder(session, opening)
    try {
      const result = await work(tx.query)
      await tx.finish(commit)
      return result
    } catch (error) {
      // Where not even this comes through, the connection is closed, which rolls back as well.
      await tx.finish(rollback).catch(discard)
      throw error
    }
  })
}

function statementsInOrder(session: Session, opening: readonly Statement[]) {
  let begun = false
  let over = false
  let failure: unknown
  let last: Promise<unknown> = Promise.resolve()
  const send = async (statement: Statement): Promise<object[]> => {
    const sent = session.send(begun ? [statement] : [...opening, statement])
    begun = true
    return (await sent).rows.at(-1)!
  }
  const query = (statement: Statement): Promise<object[]> => {
    // The connection may belong to another tenant by now.
    if (over) return Promise.reject(new Error('This transaction is over: await every query inside its function.'))
    const result = last.then(() => send(statement))
    last = result.catch((error: unknown) => (failure ??= error))
    return result
  }
  return {
    query: query as Query,
    /** Ends what was begun, once. */
    async finish(statement: Statement): Promise<void> {
      if (!over) {
        over = true
        await last
      }
      if (!begun) return
      const { tag } = await session.send([statement])
      begun = false
      // After a failed statement PostgreSQL answers COMMIT with ROLLBACK, which must not pass for a success.
      if (tag !== statement.text) {
        throw new Error('The transaction was rolled back, because a failed statement was not let through.', {
          cause: failure,
        })
      }
    },
  }
}
