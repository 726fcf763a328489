import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Profile, Profiles } from '#contracts/profiles'
import { fake } from '#testing'
import { ConductorTools, type ConductorTool } from '#contracts/conductor-tools'
import { definePlugin } from '#kernel'
import memory from '../../plugins/memory/index.ts'
import { chat, stage } from './stage.ts'

const profile = { name: 'p' } as Profile
const profiles = fake(Profiles, {
  find: async () => profile,
  findIn: async () => profile,
  findPlaced: async () => ({ profile, revision: 1 }),
})

test('what is remembered of an end user is exported and erased whole, with its history; that of others stays', async (t) => {
  const { call, sql, count, database } = await stage(t, {}, undefined, {}, [profiles, memory])
  const save = async (body: object, tenant = 'acme') =>
    (await call('POST', '/api/profiles/p/memories', tenant, body)).json<{ id: string; stored: boolean }>()
  await sql('acme', ...chat('acme', 'a1', 0, 'conv_a', 'ann'))
  await save({ processedContent: 'Ann lives in Berlin.', endUserId: 'ann' })
  const second = await save({ processedContent: 'Ann lives in Munich.', endUserId: 'ann' })
  await save({ processedContent: 'Ann had a key of the house once.', endUserId: 'ann', ttlSeconds: 1 })
  await sql('acme', `UPDATE memories SET expires_at = now() - interval '1 hour' WHERE ttl_seconds = 1`)
  // Of her chat, though nobody wrote down whose it is.
  const session = 'sess-run_a1'
  const [[run]] = await database.batch<[{ session: string }[]]>('acme', [
    {
      text: `SELECT r.session_id AS session FROM runs r JOIN public_runs p ON p.run_id = r.id WHERE p.end_user_id = 'ann'`,
    },
  ])
  await save({ processedContent: 'The word for the door is zanzibar.', sessionId: run?.session ?? session })
  await sql(
    'acme',
    `INSERT INTO memory_recalls (tenant_id, run_id, place, memory_id) VALUES ('acme', 'run_x', 1, '${second.id}')`,
  )
  await save({ processedContent: 'Bob lives in Oslo.', endUserId: 'bob' })
  await save({ processedContent: 'The shop opens at nine.' })
  await save({ processedContent: 'Ann of globex lives in Rome.', endUserId: 'ann' }, 'globex')

  const { items } = (await call('GET', '/api/end-users/ann/export', 'acme')).json<{
    items: Record<string, unknown>[]
  }>()
  const exported = items.filter(({ type }) => type === 'memory').map((one) => one['processedContent'])
  assert.deepEqual(exported.toSorted(), [
    'Ann had a key of the house once.',
    'Ann lives in Berlin.',
    'Ann lives in Munich.',
    'The word for the door is zanzibar.',
  ])
  const erased = (await call('DELETE', '/api/end-users/ann', 'acme')).json()
  assert.deepEqual([erased.data, erased.conversations, erased.pending], [{ memory: 4 }, 1, 0])
  // Nothing of them is in any table that has what memories say, or the words by which they are found.
  for (const table of ['memories', 'memory_postings', 'memory_terms', 'memory_recalls'])
    for (const word of ['berlin', 'munich', 'muenchen', 'house', 'zanzibar', second.id]) {
      const look = { text: `SELECT 1 FROM ${table} t WHERE position($1 IN lower(t::text)) > 0`, values: [word] }
      assert.deepEqual(await database.batch('acme', [look]), [[]], `${table} ${word}`)
    }
  assert.deepEqual([await count('acme', 'memories'), await count('globex', 'memories')], [2, 1])
  assert.equal((await call('DELETE', '/api/end-users/ann', 'acme')).statusCode, 404)

  // Somebody of whom nothing but memories is here is known, too.
  assert.equal((await call('GET', '/api/end-users/bob/export', 'acme')).json().items.length, 1)
  await sql('acme', `UPDATE tenants SET legal_hold = true WHERE id = 'acme'`)
  assert.equal((await call('DELETE', '/api/end-users/bob', 'acme')).json().error, 'legal_hold')
  assert.equal(await count('acme', 'memories'), 2)
  await sql('acme', `UPDATE tenants SET legal_hold = false WHERE id = 'acme'`)
  assert.deepEqual((await call('DELETE', '/api/end-users/bob', 'acme')).json().data, { memory: 1 })
})

test('of a session of the API, which may have runs of several, an end user has what their own runs wrote', async (t) => {
  const { call, sql, count } = await stage(t, {}, undefined, {}, [profiles, memory])
  const run = (id: string, person: string) =>
    `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, ordinal, started_at, finished_at, end_user_id)
     VALUES ('acme', '${id}', 's-shared', 'p', 'ok', 'x', 'me', 1, 1, now(), now(), ${person})`
  await sql('acme', run('plain', 'NULL'), run('hers', `'ann'`))
  for (const [runId, processedContent] of Object.entries({
    plain: 'The shop opens at nine.',
    hers: 'The door is blue.',
  }))
    await call('POST', '/api/profiles/p/memories', 'acme', { processedContent, sessionId: 's-shared', runId })
  assert.equal(await count('acme', 'memories'), 2)
  assert.deepEqual((await call('DELETE', '/api/end-users/ann', 'acme')).json().data, { memory: 1 })
  assert.equal(await count('acme', 'memories'), 1)
})

test('what a run writes that had begun before its end user was erased brings nothing of them back', async (t) => {
  const found: ReadonlyMap<string, ConductorTool>[] = []
  const probe = definePlugin({
    name: 'tools-probe',
    requires: { tools: ConductorTools },
    setup: async ({ deps }) => (found.push(deps.tools), {}),
  })
  const { call, sql, count } = await stage(t, {}, undefined, {}, [profiles, memory, probe])
  const began = (id: string, at: string) =>
    `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, ordinal, started_at)
     VALUES ('acme', '${id}', 's-${id}', 'p', 'running', 'x', 'me', 1, 1, ${at})`
  await sql('acme', began('before', `now() - interval '1 minute'`))
  const saves = async (runId: string, content: string, endUserId: string | null = 'ann') => {
    const caller = {
      tenantId: 'acme',
      sessionId: 's',
      runId,
      profile: { name: 'p' },
      endUserId: endUserId ?? undefined,
    }
    return (await found[0]!.get('memory_save')!.execute({ content }, caller as never)).ok
  }
  assert.equal(await saves('before', 'Ann lives in Berlin.'), true)
  assert.deepEqual((await call('DELETE', '/api/end-users/ann', 'acme')).json().data, { memory: 1 })
  // The run is of the API, and goes on; another one was of a chat, and is gone.
  assert.equal(await saves('before', 'Ann lives in Munich.'), false)
  assert.equal(await saves('gone', 'Ann lives in Munich.'), false)
  assert.equal(await count('acme', 'memories'), 0)
  assert.equal(await saves('before', 'Bob lives in Oslo.', 'bob'), true)
  assert.equal(await saves('before', 'The shop opens at nine.', null), true)
  // Whoever comes back is remembered again; an admin may write anything.
  await sql('acme', began('after', `clock_timestamp()`))
  assert.equal(await saves('after', 'Ann lives in Rome.'), true)
  const own = { processedContent: 'Ann had a dog.', endUserId: 'ann', runId: 'before' }
  assert.equal((await call('POST', '/api/profiles/p/memories', 'acme', own)).json<{ stored: boolean }>().stored, true)
})
