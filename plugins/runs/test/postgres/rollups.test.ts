import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Database } from '#contracts/database'
import type { Profile } from '#contracts/profiles'
import { openStores } from './stores.ts'

const profile = { name: 'p', runtime: 'general', model: 'a/m', limits: {} } as unknown as Profile

/** The first answer of the database that is there; a round is over when its timer's work is. */
async function edgeOf(db: Database, tenant: string): Promise<string> {
  for (;;) {
    const [[row]] = await db.batch<[{ edge: string }[]]>(tenant, [
      { text: 'SELECT rolled_until::text AS edge FROM rollup_edges' },
    ])
    if (row) return row.edge
  }
}

test('a process in which runs of a tenant have ended adds them up by itself, and a tenant that fails stops no other', async (t) => {
  t.mock.timers.enable({ apis: ['setInterval'] })
  const stores = await openStores(t)
  const store = await stores.open()
  for (const [n, tenantId] of ['acme', 'globex'].entries()) {
    const run = { tenantId, runId: `run-${n}`, sessionId: `sess-${n}` }
    const started = await store.start({ ...run, task: { profile: 'p', prompt: 'x' }, create: { profile } })
    assert.ok(started.kind === 'started')
    await store.finish({ claim: started.claim, status: 'ok', sessionStatus: 'idle', result: 'y', tail: undefined })
  }
  // Of the other one the first statement fails.
  await stores.db.systemBatch([
    { text: `ALTER TABLE rollup_edges ADD CONSTRAINT not_acme CHECK (tenant_id <> 'acme')` },
  ])
  t.mock.timers.tick(30_000)
  assert.ok(Date.parse(await edgeOf(stores.db, 'globex')) < Date.now() - 59_000, 'a minute back')
})
