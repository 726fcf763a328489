import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { AppError, conflict, definePlugin, unavailable } from '#kernel'
import { Database } from '#contracts/database'
import { Idempotency } from '#contracts/idempotency'
import type { RunAccepted, SubTask } from '#contracts/runs'
import { databasePlugin, freshDatabase, idempotencyPlugin, testKernel } from '#testing'
import { startOnce } from '../routes.ts'
import type { RunService } from '../service.ts'

interface Stage {
  readonly begun: Map<string, SubTask>
  /** What a start throws, before or after the run exists. */
  failure: { readonly error: Error; readonly after: boolean } | undefined
  start(key: string | undefined, task: Partial<SubTask>): Promise<RunAccepted & { replayed: boolean }>
  freeLeases(): Promise<unknown>
}

/** Runs that only have ids, started the way the route does. */
async function stage(t: TestContext, known = true): Promise<Stage> {
  const begun = new Map<string, SubTask>()
  let keys: Idempotency | undefined
  let database: Database | undefined
  const peek = definePlugin({
    name: 'peek',
    requires: { idempotency: Idempotency, database: Database },
    async setup({ deps }) {
      keys = deps.idempotency
      database = deps.database
      return {}
    },
  })
  await testKernel(t, [await databasePlugin(await freshDatabase(t)), await idempotencyPlugin(), peek], {
    listeners: [],
  })
  let sessions = 0
  const service: Pick<RunService, 'start'> = {
    async start(_tenantId, task) {
      const runId = task.id ?? 'missing'
      if (s.failure && !s.failure.after) throw s.failure.error
      if (begun.has(runId) && begun.get(runId)!.prompt !== task.prompt) throw conflict()
      if (!begun.has(runId)) begun.set(runId, task)
      if (s.failure) throw s.failure.error
      return { runId, sessionId: `sess-${++sessions}`, status: 'running' }
    },
  }
  const s: Stage = {
    begun,
    failure: undefined,
    async start(key, task) {
      const caller = { tenantId: 'acme', role: 'member', keyId: 'tak_1' } as const
      const { accepted, replayed } = await startOnce(
        service as RunService,
        known ? keys : undefined,
        caller,
        { profile: 'p', prompt: 'Hi', ...task },
        key,
      )
      return { ...accepted, replayed }
    },
    freeLeases: () =>
      database!.batch('acme', [{ text: `UPDATE idempotency_keys SET locked_until = now() - interval '1 second'` }]),
  }
  return s
}

test('a run started with a key is started once, and its first answer repeated word for word', async (t) => {
  const s = await stage(t)
  const first = await s.start('k', {})
  const { replayed, ...answer } = first
  assert.equal(replayed, false)
  assert.deepEqual(await s.start('k', {}), { ...answer, replayed: true })
  await assert.rejects(s.start('k', { prompt: 'other' }), { code: 'idempotency_key_reused', status: 422 })
  assert.equal(s.begun.size, 1)
  await s.start('k2', {})
  assert.equal(s.begun.size, 2)
})

test('a refused start leaves the key unused', async (t) => {
  const s = await stage(t)
  s.failure = { error: new AppError('unknown_profile: p', 400), after: false }
  await assert.rejects(s.start('k', {}), { code: 'unknown_profile: p' })
  s.failure = undefined
  assert.equal((await s.start('k', { prompt: 'another' })).replayed, false)
})

test('a start whose outcome is in doubt is joined by the next request of its key, not repeated', async (t) => {
  const s = await stage(t)
  for (const error of [unavailable(), new Error('bug')]) {
    s.begun.clear()
    s.failure = { error, after: true }
    await assert.rejects(s.start(error.message, { id: 'mine' }))
    s.failure = undefined
    assert.equal((await s.start(error.message, { id: 'mine' })).runId, 'mine')
    s.begun.clear()
    s.failure = { error, after: true }
    await assert.rejects(s.start(`${error.message} 2`, {}))
    s.failure = undefined
    const { runId } = await s.start(`${error.message} 2`, {})
    assert.deepEqual([...s.begun.keys()], [runId])
  }
})

test("a client's own run id with the same task is the same run, with or without a key; with another it is refused", async (t) => {
  const s = await stage(t)
  await s.start(undefined, { id: 'mine' })
  assert.equal((await s.start('k', { id: 'mine' })).runId, 'mine')
  await assert.rejects(s.start(undefined, { id: 'mine', prompt: 'other' }), { code: 'conflict' })
  assert.equal(s.begun.size, 1)
})

test('a server without keys refuses the header instead of ignoring it', async (t) => {
  const s = await stage(t, false)
  await assert.rejects(s.start('k', {}), { code: 'unavailable', status: 503 })
  await s.start(undefined, { id: 'a' })
  assert.equal(s.begun.size, 1)
})
