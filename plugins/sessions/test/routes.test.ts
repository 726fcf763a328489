import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { chunkOf, fake, runStorePlugin, testKernel } from '#testing'
import { ApiGuard, type Guard, InternalGuard } from '#contracts/auth'
import type { Profile } from '#contracts/profiles'
import { type Claim, RunStore } from '#contracts/run-store'
import { type RunnerLink, RunnerPool } from '#contracts/runner'
import sessions from '../index.ts'

const guard: Guard = {
  protect() {},
  callerOf: (request) => ({ tenantId: request.headers.authorization ?? 'acme', role: 'owner', keyId: 'tak_test' }),
}

async function stage(t: TestContext) {
  const got: { store?: RunStore } = {}
  const grab = definePlugin({
    name: 'grab',
    requires: { store: RunStore },
    async setup(ctx) {
      got.store = ctx.deps.store
      return {}
    },
  })
  const deleted: string[] = []
  const runner = {
    async deleteSession(tenantId: string, id: string) {
      deleted.push(`${tenantId} ${id}`)
      if (id.endsWith('-away')) throw new Error('connection refused')
    },
  } as unknown as RunnerLink
  const kernel = await testKernel(t, [
    sessions,
    await runStorePlugin(),
    grab,
    fake(RunnerPool, {
      place: () => runner,
      home: () => runner,
      owner: () => runner,
      all: () => [runner],
      fleet: () => [],
      onLive: () => () => {},
      onDraining: () => () => {},
    }),
    fake(ApiGuard, guard),
    fake(InternalGuard, guard),
  ])
  const call = (method: 'GET' | 'DELETE', url: string, headers = {}, listener = 'conductor') =>
    kernel.listeners[listener]!.inject({ method, url, headers })
  return { store: got.store!, deleted, call }
}

async function begin(store: RunStore, sessionId: string, profile = 'writer'): Promise<Claim> {
  const outcome = await store.start({
    tenantId: 'acme',
    runId: `run-${sessionId}`,
    sessionId,
    task: { profile, prompt: 'hello' },
    create: { profile: { name: profile, runtime: 'general' } as Profile },
  })
  assert.equal(outcome.kind, 'started')
  return outcome.kind === 'started' ? outcome.claim : assert.fail()
}
const finish = (store: RunStore, claim: Claim) =>
  store.finish({ claim, status: 'ok', sessionStatus: 'idle', tail: chunkOf(claim, 1, 1) })

test('sessions are listed with their profile, runtime, status and last run, paged and searched', async (t) => {
  const { store, call } = await stage(t)
  await finish(store, await begin(store, 'sess-1'))
  await begin(store, 'sess-2', 'painter')
  const all = await call('GET', '/api/sessions')
  assert.equal(all.headers['x-total-count'], '2')
  const first = all.json().find((s: { id: string }) => s.id === 'sess-1')
  assert.deepEqual(
    { ...first, createdAt: '', lastUsedAt: '' },
    {
      id: 'sess-1',
      profile: 'writer',
      runtime: 'general',
      status: 'idle',
      createdAt: '',
      lastUsedAt: '',
      lastPrompt: 'hello',
      lastRunStatus: 'ok',
      runCount: 1,
    },
  )
  assert.deepEqual((await call('GET', '/api/sessions/sess-1')).json(), first)
  const found = (await call('GET', '/api/sessions?q=paint&limit=5')).json()
  assert.deepEqual(
    found.map((s: { id: string }) => s.id),
    ['sess-2'],
  )
  const page = await call('GET', '/api/sessions?limit=1&offset=0')
  assert.equal(page.json().length, 1)
  assert.match(String(page.headers['link']), /offset=1/)
})

test('a session lists its own runs', async (t) => {
  const { store, call } = await stage(t)
  await finish(store, await begin(store, 'sess-1'))
  await begin(store, 'sess-2')
  const reply = await call('GET', '/api/sessions/sess-1/runs')
  assert.equal(reply.headers['x-total-count'], '1')
  assert.equal(reply.json()[0].subTask.sessionId, 'sess-1')
  assert.equal((await call('GET', '/api/sessions/sess-9/runs')).statusCode, 404)
})

test('DELETE shuts a session down here and on its runner, also when the runner is away; a running one is busy', async (t) => {
  const { store, call, deleted } = await stage(t)
  const claim = await begin(store, 'sess-1')
  const busy = await call('DELETE', '/api/sessions/sess-1')
  assert.deepEqual([busy.statusCode, busy.json().error], [409, 'session_busy'])
  assert.deepEqual(deleted, [])
  await finish(store, claim)
  assert.equal((await call('DELETE', '/api/sessions/sess-1', {}, 'internal')).statusCode, 204)
  assert.equal((await call('DELETE', '/api/sessions/sess-1')).statusCode, 204)
  assert.deepEqual(deleted, ['acme sess-1', 'acme sess-1'])
  assert.equal((await call('GET', '/api/sessions/sess-1')).json().status, 'shutdown')
  assert.deepEqual((await call('GET', '/api/sessions')).json(), [])
  await finish(store, await begin(store, 'sess-away'))
  assert.equal((await call('DELETE', '/api/sessions/sess-away')).statusCode, 204)
})

test('a foreign session is an unknown session', async (t) => {
  const { store, call } = await stage(t)
  await finish(store, await begin(store, 'sess-1'))
  const foreign = { authorization: 'globex' }
  for (const [method, suffix] of [
    ['GET', ''],
    ['GET', '/runs'],
    ['DELETE', ''],
  ] as const) {
    const body = async (id: string): Promise<unknown> => {
      const reply = await call(method, `/api/sessions/${id}${suffix}`, foreign)
      assert.equal(reply.statusCode, 404)
      return { ...(JSON.parse(reply.body) as object), request_id: '' }
    }
    assert.deepEqual(await body('sess-1'), await body('sess-unknown'))
  }
  assert.equal((await store.getSession('acme', 'sess-1'))?.status, 'idle')
})

test('the internal listener lists nothing', async (t) => {
  const { call } = await stage(t)
  assert.equal((await call('GET', '/api/sessions', {}, 'internal')).statusCode, 404)
})
