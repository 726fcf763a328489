import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { TenantTx } from '#contracts/database'
import { chat, stage } from './stage.ts'

test('stores that do not answer for a while hold one connection, and a legal hold waits for them', async (t) => {
  const begun: string[] = []
  const store = Promise.withResolvers<void>()
  const objects = {
    erase: async () => ({ deleted: 0, more: false }),
    async sweep({ tenantId, query }: TenantTx) {
      // A statement of the sweep, in its transaction.
      await query({ text: 'SELECT 1' })
      begun.push(tenantId)
      await store.promise
      return { deleted: 1, more: false }
    },
  }
  const s = await stage(t, {}, undefined, { objects })
  const names = ['acme', 'globex', 'initech']
  for (const id of names) {
    await s.database.systemBatch([
      { text: 'INSERT INTO tenants (id, name) VALUES ($1, $1) ON CONFLICT DO NOTHING', values: [id] },
    ])
    await s.sql(id, ...chat(id, 'a1', 0, 'conv_a', 'ann'))
  }
  const erased = names.map((id) => s.call('DELETE', '/api/end-users/ann', id))
  while (begun.length === 0) await new Promise((resolve) => setImmediate(resolve))
  let held = false
  const hold = s.call('PATCH', `/api/tenants/${begun[0]}`, 'default', { legalHold: true }).then(() => (held = true))
  for (const id of names) while ((await s.count(id, 'runs')) > 0);
  // All of these need connections for reads.
  for (let i = 0; i < 300; i++) await s.database.as('reads').batch(names[i % 3]!, [{ text: 'SELECT 1' }])
  assert.deepEqual([begun.length, held], [1, false])
  store.resolve()
  await hold
  const answers = await Promise.all(erased)
  assert.deepEqual(
    answers.map(({ statusCode }) => statusCode).filter((status) => status >= 500),
    [],
  )
  assert.deepEqual([...new Set(begun)].toSorted(), names)
})
