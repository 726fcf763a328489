import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { Database } from '#contracts/database'
import { databasePlugin, freshDatabase, testKernel } from '#testing'
import { KeptStoredBytes } from '../stored.ts'

const max = 1_000
const quiet = { warn: () => assert.fail('nothing fails') }

/** The database, and processes that write to it. */
async function stage(t: TestContext) {
  const found: Database[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database },
    setup: async ({ deps }) => (found.push(deps.database), {}),
  })
  await testKernel(t, [await databasePlugin(await freshDatabase(t)), probe])
  const database = found[0]!
  const process = () => new KeptStoredBytes(database, () => max, quiet)
  const sql = (text: string) => database.batch('default', [{ text }])
  return { database, process, sql }
}

test('what processes write is added up, and each hears of it with its next look', async (t) => {
  const { process } = await stage(t)
  const [here, there] = [process(), process()]
  here.add('default', 600)
  there.add('default', 300)
  assert.deepEqual([here.isFull('default'), there.isFull('default')], [false, false])
  await here.sweep()
  await there.sweep()
  assert.equal(await here.used('default'), 900)
  there.add('default', 100)
  assert.equal(there.isFull('default'), true, 'at once where it was written')
  assert.equal(await there.used('default'), 1_000)
  await there.stop()
  here.add('default', 1)
  await here.sweep()
  assert.throws(() => here.admit('default'), {
    status: 409,
    code: 'limit_exceeded',
    detail: { limit: 'storedBytes', max },
  })
})

test('a full tenant may still make a few small writes, and not as many as it likes', async (t) => {
  const { process } = await stage(t)
  const here = process()
  here.add('default', max)
  const refused = { code: 'limit_exceeded', detail: { limit: 'storedBytes', max } }
  assert.throws(() => here.admit('default'), refused)
  assert.doesNotThrow(() => {
    for (let i = 0; i < 1_000; i++) here.admit('default', 'member')
  })
  assert.throws(() => here.admit('default', 'member'), refused)
  here.admit('default', 'owner')
})

test('a process that has just begun soon knows what others have written', async (t) => {
  const { process } = await stage(t)
  const former = process()
  former.add('default', 2_000)
  await former.stop()
  const next = process()
  assert.equal(next.isFull('default'), false, 'nobody waits for the answer')
  await next.sweep()
  assert.equal(next.isFull('default'), true)
})

test('what is deleted is free again, and a full tenant hears of it', async (t) => {
  const { process, sql } = await stage(t)
  const here = process()
  const log = 'x'.repeat(900)
  await sql(`INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
             SELECT 'default', 'run-' || n, 1, 1, '${log}'::bytea FROM generate_series(1, 2) n`)
  here.add('default', 2 * 1_028)
  await here.sweep()
  assert.equal(here.isFull('default'), true)
  await sql(`DELETE FROM run_events WHERE tenant_id = 'default' AND run_id = 'run-1'`)
  assert.equal(await here.used('default'), 1_028, 'the row and what it holds')
  await sql(`DELETE FROM run_events WHERE tenant_id = 'default'`)
  await here.sweep()
  assert.equal(here.isFull('default'), false)
})

test('every table whose deletions count frees what its rows hold', async (t) => {
  const { database, process, sql } = await stage(t)
  await sql(`INSERT INTO sessions (tenant_id, id, profile, runtime, profile_snapshot, status)
             VALUES ('default', 's', 'p', 'general', jsonb_build_object('x', repeat('y', 100)), 'idle')`)
  await sql(
    `INSERT INTO session_state (tenant_id, session_id, content_type, bytes) VALUES ('default', 's', 'x', '12345')`,
  )
  await sql(`INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, finished_at, result, input)
             VALUES ('default', 'r', 's', 'p', 'ok', '1234567', 'x', 1, now(), '123', '[1]')`)
  await sql(`INSERT INTO messages (tenant_id, conversation_id, public_run_id, role, content)
             VALUES ('default', 'c', 'r', 'user', '123456789')`)
  const here = process()
  here.add('default', 10_000)
  await here.sweep()
  const freed = async (table: string): Promise<number> => {
    const before = await here.used('default')
    await database.batch('default', [{ text: `DELETE FROM ${table} WHERE tenant_id = 'default'` }])
    return before - (await here.used('default'))
  }
  assert.equal(await freed('session_state'), 128 + 5)
  assert.equal(await freed('messages'), 128 + 9)
  const run = await freed('runs')
  assert.ok(run >= 128 + 7 + 3 + 3 && run < 200, String(run))
  assert.ok((await freed('sessions')) > 228)
})

test('a tenant that was deleted is not begun anew by what a process had still to tell', async (t) => {
  const { database, process } = await stage(t)
  await database.systemBatch([{ text: `INSERT INTO tenants (id, name, deleted_at) VALUES ('gone', 'gone', now())` }])
  const here = process()
  here.add('gone', 500)
  await here.sweep()
  assert.deepEqual(await database.batch('gone', [{ text: 'SELECT FROM tenant_storage' }]), [[]])
})

test('without a database nothing is stored', () => {
  const memory = new KeptStoredBytes(undefined, () => 0, quiet)
  memory.add('default', 5)
  assert.equal(memory.isFull('default'), false)
})
