import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { Database } from '#contracts/database'
import { databasePlugin, freshDatabase, testKernel } from '#testing'
import { createKeyLookup } from '../store.ts'

const hash = Buffer.alloc(32, 9)

async function stored(t: TestContext) {
  const found: Database[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database },
    setup: async ({ deps }) => (found.push(deps.database), {}),
  })
  await testKernel(t, [await databasePlugin(await freshDatabase(t)), probe])
  const database = found[0]!
  const insert = (tenant: string, id: string, key: Buffer) =>
    database.batch(tenant, [
      {
        text: `INSERT INTO tenant_api_keys (tenant_id, id, label, role, key_hash, created_by) VALUES ($1, $2, 'l', 'admin', $3, 'test')`,
        values: [tenant, id, key],
      },
    ])
  const set = (assignment: string) =>
    database.batch('acme', [{ text: `UPDATE tenant_api_keys SET ${assignment} WHERE id = 'tak_1'` }])
  await insert('acme', 'tak_1', hash)
  await insert('globex', 'tak_2', Buffer.alloc(32, 1))
  return { database, set, lookup: createKeyLookup(database, { warn: assert.fail }) }
}

const caller = { tenantId: 'acme', role: 'admin', keyId: 'tak_1' }

test('a key is found by its hash before its tenant is known', async (t) => {
  const { lookup } = await stored(t)
  assert.deepEqual(await lookup.find(hash), caller)
  assert.equal(await lookup.find(Buffer.alloc(32, 8)), undefined)
  await lookup.settled()
})

test('a revoked or expired key, or one of a deleted tenant, is unknown on the very next look-up', async (t) => {
  const { database, set, lookup } = await stored(t)
  for (const [off, on] of [
    ['revoked_at = now()', 'revoked_at = NULL'],
    ["expires_at = now() - interval '1 second'", "expires_at = now() + interval '1 hour'"],
  ] as const) {
    await set(off)
    assert.equal(await lookup.find(hash), undefined, off)
    await set(on)
    assert.deepEqual(await lookup.find(hash), caller, on)
  }
  assert.deepEqual(await Promise.all(['acme', 'nobody'].map(lookup.tenantLives)), [true, false])
  await database.systemBatch([{ text: `UPDATE tenants SET deleted_at = now() WHERE id = 'acme'` }])
  assert.equal(await lookup.find(hash), undefined)
  assert.equal(await lookup.tenantLives('acme'), false)
  await lookup.settled()
})

test('the policy of the look-up shows one row and lets nothing be written', async (t) => {
  const { database } = await stored(t)
  const seen = { 'app.auth_hash': hash.toString('hex') }
  const all = { text: 'SELECT id FROM tenant_api_keys' }
  assert.deepEqual(await database.systemBatch([all], seen), [[{ id: 'tak_1' }]])
  assert.deepEqual(await database.systemBatch([all]), [[]])
  const write = { text: `UPDATE tenant_api_keys SET role = 'owner' RETURNING id` }
  assert.deepEqual(await database.systemBatch([write], seen), [[]])
  assert.deepEqual(await database.systemBatch([{ text: 'DELETE FROM tenant_api_keys RETURNING id' }], seen), [[]])
})

test('the last use is recorded behind the request, at most once a minute', async (t) => {
  const { database, set, lookup } = await stored(t)
  const lastUse = async () => {
    await lookup.settled()
    const select = {
      text: `SELECT last_used_at AS at, last_used_at > now() - interval '30 seconds' AS fresh FROM tenant_api_keys`,
    }
    const [[row]] = await database.batch<[{ at: string | null; fresh: boolean | null }[]]>('acme', [select])
    return row!
  }
  assert.equal((await lastUse()).at, null)
  await Promise.all([lookup.find(hash), lookup.find(hash)])
  const first = await lastUse()
  assert.equal(first.fresh, true)
  await set(`last_used_at = now() - interval '40 seconds'`)
  await lookup.find(hash)
  assert.equal((await lastUse()).fresh, false)
  await set(`last_used_at = now() - interval '61 seconds'`)
  await lookup.find(hash)
  assert.equal((await lastUse()).fresh, true)
})

test('a key used within the last minute costs no write', async () => {
  const database = {
    systemBatch: async () => [[{ tenant_id: 'acme', id: 'tak_1', role: 'admin', stale: false }]],
    batch: () => assert.fail('nothing to write'),
  } as unknown as Database
  const lookup = createKeyLookup(database, { warn: assert.fail })
  assert.deepEqual(await lookup.find(hash), caller)
  await lookup.settled()
})

test('a last use that cannot be recorded is logged and costs the request nothing', async () => {
  const logged: unknown[] = []
  const database = {
    systemBatch: async () => [[{ tenant_id: 'acme', id: 'tak_1', role: 'admin', stale: true }]],
    batch: () => Promise.reject(new Error('gone')),
  } as unknown as Database
  const lookup = createKeyLookup(database, { warn: (...args: unknown[]) => void logged.push(args) })
  assert.deepEqual(await lookup.find(hash), caller)
  await lookup.settled()
  assert.equal(logged.length, 1)
})
