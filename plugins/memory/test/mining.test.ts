import assert from 'node:assert/strict'
import { once } from 'node:events'
import { test } from 'node:test'
import type { Database } from '#contracts/database'
import { type SweepParts, sweepTenants } from '../sweep.ts'
import { isTold } from '../text/facts.ts'
import { stage } from './stage.ts'

interface Ended {
  readonly id: string
  readonly session?: string
  readonly profile?: string
  readonly prompt: string
  readonly endUser?: string
  readonly status?: string
  readonly parent?: object
}

/** A run that has ended, as the statements of runs leave it. */
async function ended(database: Database, { id, session = 's1', profile = 'helper', status = 'ok', ...run }: Ended) {
  const metadata = run.endUser === undefined ? null : JSON.stringify({ end_user_id: run.endUser, odd: '\0' })
  await database.batch('acme', [
    {
      text: `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, metadata, claim_owner, claim_epoch, ordinal, finished_at, parent)
             VALUES ('acme', $1, $2, $3, $4, $5, $6, 'me', 1, 1, now(), $7)`,
      values: [id, session, profile, status, run.prompt, metadata, run.parent ? JSON.stringify(run.parent) : null],
    },
    {
      text: `INSERT INTO run_meters (tenant_id, run_id, session_id, profile, status, started_at, recorded_at)
             VALUES ('acme', $1, $2, $3, $4, now() - interval '3 seconds', clock_timestamp() - interval '2 seconds')`,
      values: [id, session, profile, status],
    },
  ])
}
const profiles = (memory: object): { text: string; values: unknown[] } => ({
  text: `INSERT INTO profiles (tenant_id, name, id, document) VALUES ('acme', 'helper', 'p1', $1), ('acme', 'quiet', 'p2', '{}')
         ON CONFLICT (tenant_id, name) DO UPDATE SET document = excluded.document`,
  values: [JSON.stringify({ memory })],
})

test('what people say in conversations of a profile that asks for it becomes memories of theirs, once', async (t) => {
  const { database, sweep, call, recall, save } = await stage(t, { profiles: ['helper', 'quiet'] })
  await database.batch('acme', [
    { text: `INSERT INTO tenants (id, name) VALUES ('acme', 'Acme') ON CONFLICT DO NOTHING` },
    profiles({ extract: true, inject: 3 }),
  ])
  const kept = async () =>
    (await call('GET', '/profiles/helper/memories')).json<Record<string, string>[]>().map((one) => ({
      said: one['processedContent'],
      of: one['endUserId'],
      run: one['runId'],
      source: one['source'],
      id: one['id'],
    }))
  await save({ processedContent: 'I get ten percent off on Sundays.' })
  const message = {
    tenantId: 'acme',
    runId: 'r1',
    profile: { name: 'helper', memory: { inject: 3 } },
    endUserId: 'ann',
  }
  assert.match(await recall.choose({ ...message, prompt: 'What is off on Sundays?' }), /ten percent/)
  await ended(database, {
    id: 'r1',
    endUser: 'ann',
    prompt: 'Hi! I live in Berlin. Write me a poem about rain. I get ten percent off on Sundays, thanks! How old am I?',
  })
  await ended(database, { id: 'r2', endUser: 'bob', session: 's2', prompt: 'I live in Rome.', profile: 'quiet' })
  await ended(database, { id: 'r3', endUser: 'bob', session: 's3', prompt: 'I live in Rome.', status: 'error' })
  await ended(database, { id: 'r4', endUser: 'bob', session: 's4', prompt: 'I live in Rome.', parent: { runId: 'r1' } })
  await ended(database, { id: 'r5', session: 's5', prompt: 'My name is Eve, whoever I am.' })
  await sweep()
  const [berlin, ...others] = await kept()
  assert.deepEqual({ ...berlin, id: '' }, { said: 'I live in Berlin.', of: 'ann', run: 'r1', source: 'mined', id: '' })
  assert.deepEqual(
    others.map(({ said }) => said),
    ['I get ten percent off on Sundays.'],
  )
  const { refused } = (await call('GET', '/memory/stats')).json<{ refused: Record<string, number> }>()
  assert.equal(refused['recalled'], 1)

  await ended(database, { id: 'r6', endUser: 'ann', prompt: 'I have moved to Munich. I have moved to Munich!' })
  await ended(database, { id: 'r7', endUser: 'ann', prompt: 'Ok, thanks!' })
  await sweep()
  await sweep()
  const all = await kept()
  const [munich, ...rest] = all.filter(({ of }) => of === 'ann')
  assert.deepEqual([munich!.said, rest], ['I have moved to Munich.', []])
  const history = await call('GET', `/profiles/helper/memories/${munich!.id}/history`)
  assert.deepEqual(
    history.json<{ processedContent: string }[]>().map((one) => one.processedContent),
    ['I have moved to Munich.', 'I live in Berlin.'],
  )
  // A profile that no longer extracts memories is not read from then on, and messages of the meantime stay unread.
  await database.batch('acme', [profiles({})])
  await ended(database, { id: 'r8', endUser: 'ann', prompt: 'My dog is called Rex.' })
  await sweep()
  assert.deepEqual(await kept(), all)
  assert.deepEqual(await database.batch('acme', [{ text: 'SELECT * FROM memory_mining' }]), [[]])
})

test('of a message what somebody tells is remembered, not what they ask, want done, or paste', () => {
  const told = [
    'My sister Mia is a vet.',
    'Ich wohne in Graz.',
    'Prefiero la ventanilla.',
    'Мой сын учится в Праге.',
    '我喜欢喝茶。',
  ]
  const other = [
    'Write a letter to my landlord.',
    'Where is my bag?',
    'I want you to be brief.',
    'The mitochondria is a part of a cell.',
    'Bitte schreib mir ein Gedicht.',
    '请帮我写信。',
    `I ${'really '.repeat(80)}mean it.`,
  ]
  assert.deepEqual(
    told.filter((one) => !isTold(one)),
    [],
  )
  assert.deepEqual(other.filter(isTold), [])
})

test(
  'a tenant with very much to embed keeps no other one waiting for more than its turn',
  { timeout: 30_000 },
  async () => {
    const reads = { systemBatch: async () => [[{ id: 'big' }, { id: 'small' }]], batch: async () => [[], [], []] }
    const served: string[] = []
    const parts = {
      database: { as: () => reads },
      writer: { asksModel: () => false },
      vectors: {
        async embed(id: string, signal: AbortSignal) {
          if (id === 'big') await once(signal, 'abort')
          served.push(id)
        },
      },
      log: { warn: (fields: { err: unknown }) => assert.fail(String(fields.err)) },
      turnMs: 5,
    }
    await sweepTenants(parts as unknown as SweepParts, new AbortController().signal)
    assert.deepEqual(served, ['big', 'small'])
  },
)
