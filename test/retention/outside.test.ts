import assert from 'node:assert/strict'
import { once } from 'node:events'
import { test } from 'node:test'
import type { TenantTx } from '#contracts/database'
import type { AskStore } from '#contracts/retention'
import { Batches } from '../../plugins/retention/batches.ts'
import { holdTeller, sweepData } from '../../plugins/retention/data.ts'
import { Away, leaveRunners, type Leaving } from '../../plugins/retention/runners.ts'
import { chat, run, stage } from './stage.ts'

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
  for (let i = 0; i < 60; i++) await s.database.as('reads').batch(names[i % 3]!, [{ text: 'SELECT 1' }])
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

/** How long stores are waited for here, in milliseconds. */
const patience = { askMs: 20, endMs: 20 }
const never = new Promise<never>(() => {})
const none = { erase: async () => ({ deleted: 0, more: false }) }
const { signal } = new AbortController()

test('a store that never answers has a connection for a moment, and is then left alone for a while', async (t) => {
  const s = await stage(t)
  const asked: string[] = []
  const sweep = ({ tenantId }: TenantTx, ask: AskStore) => ask(() => (asked.push(tenantId), never))
  const batches = new Batches(s.database, 0, undefined, patience)
  const swept = (id: string) => sweepData(batches, new Map([['objects', { ...none, sweep }]]), id, signal)
  await assert.rejects(swept('acme'), { status: 503, code: 'store_silent' })
  // The row of the tenant is free again.
  await s.sql('acme', `UPDATE tenants SET legal_hold = true WHERE id = 'acme'`)
  await assert.rejects(swept('globex'), { code: 'store_silent' })
  assert.deepEqual(asked, ['acme'])
  const other = { ...none, sweep: async () => ({ deleted: 1, more: false }) }
  assert.deepEqual(await sweepData(batches, new Map([['others', other]]), 'globex', signal), { others: 1 })
})

test('a statement of one tenant that takes long is no silence of the store, and keeps it from nobody', async (t) => {
  const s = await stage(t)
  const sweep = async ({ tenantId, query }: TenantTx) => {
    if (tenantId === 'acme') await query({ text: 'SELECT pg_sleep(0.2)' })
    return { deleted: 1, more: false }
  }
  const batches = new Batches(s.database, 0, undefined, patience)
  const data = new Map([['objects', { ...none, sweep }]])
  for (const id of ['acme', 'globex']) assert.deepEqual(await sweepData(batches, data, id, signal), { objects: 1 })
})

test('a store that is told to end keeps what it has done by then, and is asked for the rest', async (t) => {
  const s = await stage(t)
  let left = 3
  const sweep = (_: TenantTx, ask: AskStore) =>
    ask(async (until) => {
      // One of them goes, the next one would take for ever.
      left--
      if (left > 0) await once(until, 'abort')
      return { deleted: 1, more: left > 0 }
    })
  const batches = new Batches(s.database, 0, undefined, patience)
  const data = new Map([['objects', { ...none, sweep }]])
  await sweepData(batches, data, 'acme', signal)
  assert.equal(left, 0)
})

test('who cannot be told of a legal hold keeps nobody’s connection, and the row of the tenant for a moment', async (t) => {
  const s = await stage(t)
  const told: [string, boolean, boolean][] = []
  let away = true
  const hold = async (id: string, held: boolean, until: AbortSignal) => {
    if (away) await never
    told.push([id, held, until.aborted])
  }
  const tell = holdTeller({ database: s.database, data: new Map([['vfs', { ...none, hold }]]), patience })
  const all = ['acme', 'globex', 'default'].map((id) => assert.rejects(tell(id), { code: 'hold_not_told' }))
  // All of these need connections for reads.
  for (let i = 0; i < 60; i++) await s.database.as('reads').batch('acme', [{ text: 'SELECT 1' }])
  await Promise.all(all)
  away = false
  await s.sql('acme', `UPDATE tenants SET legal_hold = true WHERE id = 'acme'`)
  await tell('acme')
  assert.deepEqual(told, [['acme', true, false]])
})

test('runners that never answer are waited for once and for a moment, while the row of a tenant is held', async (t) => {
  const s = await stage(t)
  for (let i = 0; i < 40; i++) await s.sql('acme', ...run('acme', `run_${i}`, 0))
  await s.sql('acme', `UPDATE sessions SET runner_hash = 'here'`)
  const asked: string[] = []
  const link = { hash: 'here', deleteSession: (_: string, id: string) => (asked.push(id), never) }
  const batches = new Batches(s.database, 0, undefined, patience)
  const parts = { batches, away: new Away(), fleet: { owner: () => link } as never, log: { warn() {} } }
  const all: Leaving = {
    late: false,
    page: (tx, after, limit) =>
      tx.query({
        text: 'SELECT id, runner_hash AS runner FROM sessions WHERE tenant_id = $1 AND id > $2 ORDER BY id LIMIT $3',
        values: [tx.tenantId, after, limit],
      }),
    drop: async () => assert.fail('no session is dropped of which its runner has a copy'),
  }
  assert.equal(await leaveRunners(parts, 'acme', all, signal), 40)
  assert.equal(asked.length, 16, 'as many as are asked at once')
  await s.sql('acme', `UPDATE tenants SET legal_hold = true WHERE id = 'acme'`)
})
