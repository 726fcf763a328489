import type { TestContext } from 'node:test'
import { freshDatabase } from '#testing'
import { type Limits, openPool, Shares } from '../pool.ts'

import { createTransactions } from '../transactions.ts'

/** Units of work on a fresh database, over a pool of `size` connections. */
export async function openTransactions(
  t: TestContext,
  size = 1,
  limits: Limits = { claims: size, requests: size, reads: size },
) {
  const pool = await openPool(await freshDatabase(t), size, { onError() {}, gate: { closed: undefined } })
  t.after(() => pool.close())
  const shares = new Shares(limits)
  const { unit, of } = createTransactions(pool, shares)
  return { ...of('requests'), unit, of, pool, shares }
}
