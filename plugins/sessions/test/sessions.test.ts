import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { AppError } from '#kernel'
import { chunkOf } from '#testing'
import type { Claim, RunStore } from '#contracts/run-store'
import type { VfsLease, WorkerLease } from '#contracts/leases'
import type { Fleet, RunnerLink } from '#contracts/runner'
import { stage } from './stage.ts'

/** A stage with one runner, which records the sessions that it is told to forget, and is away for some of them. */
async function oneRunner(t: TestContext) {
  const deleted: string[] = []
  const runner = {
    async deleteSession(tenantId: string, id: string) {
      deleted.push(`${tenantId} ${id}`)
      if (id.endsWith('-away')) throw new Error('connection refused')
    },
  } as unknown as RunnerLink
  const { kernel, store, begin } = await stage(t, { fleet: { owner: () => runner } as unknown as Fleet })
  const call = (method: 'GET' | 'DELETE', url: string, headers = {}, listener = 'conductor') =>
    kernel.listeners[listener]!.inject({ method, url, headers })
  return { store, begin, deleted, call }
}

const finish = (store: RunStore, claim: Claim) =>
  store.finish({ claim, status: 'ok', sessionStatus: 'idle', tail: chunkOf(claim, 1, 1) })

test('sessions are listed with their profile, runtime, status and last run, paged and searched', async (t) => {
  const { store, begin, call } = await oneRunner(t)
  await finish(store, await begin('sess-1'))
  await begin('sess-2', 'run-2', 'painter')
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
  assert.equal(typeof page.headers['x-next-cursor'], 'string')
})

test('a session lists its own runs', async (t) => {
  const { store, begin, call } = await oneRunner(t)
  await finish(store, await begin('sess-1'))
  await begin('sess-2')
  const reply = await call('GET', '/api/sessions/sess-1/runs')
  assert.equal(reply.headers['x-total-count'], '1')
  assert.equal(reply.json()[0].subTask.sessionId, 'sess-1')
  assert.equal((await call('GET', '/api/sessions/sess-9/runs')).statusCode, 404)
})

test('DELETE shuts a session down here and on its runner, also when the runner is away; a running one is busy', async (t) => {
  const { store, begin, call, deleted } = await oneRunner(t)
  const claim = await begin('sess-1')
  const busy = await call('DELETE', '/api/sessions/sess-1')
  assert.deepEqual([busy.statusCode, busy.json().error], [409, 'session_busy'])
  assert.deepEqual(deleted, [])
  await finish(store, claim)
  assert.equal((await call('DELETE', '/api/sessions/sess-1', {}, 'internal')).statusCode, 204)
  assert.equal((await call('DELETE', '/api/sessions/sess-1')).statusCode, 204)
  assert.deepEqual(deleted, ['acme sess-1', 'acme sess-1'])
  assert.equal((await call('GET', '/api/sessions/sess-1')).json().status, 'shutdown')
  assert.deepEqual((await call('GET', '/api/sessions')).json(), [])
  await finish(store, await begin('sess-away'))
  assert.equal((await call('DELETE', '/api/sessions/sess-away')).statusCode, 204)
})

test('a foreign session is an unknown session', async (t) => {
  const { store, begin, call } = await oneRunner(t)
  await finish(store, await begin('sess-1'))
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
  const { call } = await oneRunner(t)
  assert.equal((await call('GET', '/api/sessions', {}, 'internal')).statusCode, 404)
})

/** A runner with leases of several tenants, as its wire would tell them. */
class Leasing {
  readonly workers = new Map<string, WorkerLease[]>()
  readonly vfs = new Map<string, VfsLease[]>()
  failing = false
  asked = 0
  readonly hash: string
  constructor(hash: string) {
    this.hash = hash
  }
  readonly link = (): RunnerLink => {
    const tell = async <T>(from: Map<string, T[]>, tenant: string): Promise<T[]> => {
      this.asked++
      if (this.failing) throw new AppError('runner_unreachable', 503)
      return from.get(tenant) ?? []
    }
    const one = async <T extends { sessionId: string }>(from: Map<string, T[]>, tenant: string, id: string) =>
      (await tell(from, tenant)).find(({ sessionId }) => sessionId === id)
    return {
      hash: this.hash,
      workerLeases: (tenant: string) => tell(this.workers, tenant),
      workerLease: (tenant: string, id: string) => one(this.workers, tenant, id),
      vfsLeases: (tenant: string) => tell(this.vfs, tenant),
      vfsLease: (tenant: string, id: string) => one(this.vfs, tenant, id),
    } as unknown as RunnerLink
  }
}

function fleetOf(runners: readonly Leasing[]): Fleet {
  const links = runners.map((runner) => runner.link())
  return {
    askAll: (ask: (link: RunnerLink) => Promise<unknown>) => Promise.all(links.map(ask)),
    owner: (id: string, runner = id.slice(5, 13)) => links.find(({ hash }) => hash === runner),
  } as unknown as Fleet
}

async function twoRunners(t: TestContext) {
  const [a, b] = [new Leasing('00000001'), new Leasing('00000002')]
  const { kernel, begin } = await stage(t, { fleet: fleetOf([a, b]) })
  const call = (url: string, tenant = 'acme') =>
    kernel.listeners['conductor']!.inject({ url, headers: { authorization: tenant } })
  return { a, b, call, begin }
}

const worker = (sessionId: string, state = 'running'): WorkerLease => ({ sessionId, state }) as WorkerLease

test('without a substrate there is nothing to list and nothing to show', async (t) => {
  const { call, begin } = await twoRunners(t)
  const { sessionId: id } = await begin('sess-00000001-00000001')
  for (const url of ['/api/worker/leases', '/api/vfs/leases']) assert.deepEqual((await call(url)).json(), [], url)
  const missing = [await call(`/api/sessions/${id}/worker`), await call(`/api/sessions/${id}/vfs-lease`)]
  assert.deepEqual(
    missing.map((reply) => [reply.statusCode, reply.json<{ error: string }>().error]),
    [
      [404, 'no sandbox worker'],
      [404, 'no vfs session'],
    ],
  )
})

test('leases of all runners are merged by session, paged and counted for the tenant that asks', async (t) => {
  const { a, b, call } = await twoRunners(t)
  a.workers.set('acme', [worker('s4'), worker('s1')])
  b.workers.set('acme', [worker('s3'), worker('s2', 'paused'), worker('s1', 'gone')])
  b.workers.set('globex', [worker('s9')])
  const all = await call('/api/worker/leases')
  assert.deepEqual(all.json(), [worker('s1'), worker('s2', 'paused'), worker('s3'), worker('s4')])
  const page = await call('/api/worker/leases?limit=2&offset=1')
  assert.deepEqual(page.json(), [worker('s2', 'paused'), worker('s3')])
  assert.equal(page.headers['x-total-count'], '4')
  assert.deepEqual((await call('/api/worker/leases', 'globex')).json(), [worker('s9')])
  a.vfs.set('acme', [{ sessionId: 's2', allowedMounts: ['data'] }])
  b.vfs.set('acme', [{ sessionId: 's1' }])
  assert.deepEqual((await call('/api/vfs/leases')).json(), [
    { sessionId: 's1' },
    { sessionId: 's2', allowedMounts: ['data'] },
  ])
  const second = await call('/api/vfs/leases?limit=1&offset=1')
  assert.deepEqual(second.json(), [{ sessionId: 's2', allowedMounts: ['data'] }])
  assert.equal(second.headers['x-total-count'], '2')
})

test('one lease comes from the runner that has the session; its failure is 502, a foreign session an unknown one', async (t) => {
  const { a, b, call, begin } = await twoRunners(t)
  const { sessionId: id } = await begin('sess-00000001-00000001')
  a.workers.set('acme', [{ ...worker(id), provider: 'box' } as WorkerLease])
  a.vfs.set('acme', [{ sessionId: id, allowedMounts: [] }])
  assert.deepEqual((await call(`/api/sessions/${id}/worker`)).json(), { ...worker(id), provider: 'box' })
  assert.deepEqual((await call(`/api/sessions/${id}/vfs-lease`)).json(), { sessionId: id, allowedMounts: [] })
  assert.equal(b.asked, 0)
  const foreign = await call(`/api/sessions/${id}/worker`, 'globex')
  const unknown = await call('/api/sessions/sess-00000001-0000000f/worker', 'globex')
  const bodyOf = (reply: typeof foreign) => ({ ...reply.json<object>(), request_id: '' })
  assert.equal(foreign.statusCode, 404)
  assert.deepEqual(bodyOf(foreign), bodyOf(unknown))
  a.failing = true
  const failed = await call(`/api/sessions/${id}/worker`)
  assert.deepEqual([failed.statusCode, failed.json<{ error: string }>().error], [502, 'upstream'])
})
