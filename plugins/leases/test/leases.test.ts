import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { pino } from 'pino'
import { AppError, definePlugin } from '#kernel'
import { fake, runStorePlugin, testKernel } from '#testing'
import { ApiGuard, type Guard } from '#contracts/auth'
import type { Profile } from '#contracts/profiles'
import { RunStore } from '#contracts/run-store'
import { type FleetMember, type RunnerLink, RunnerPool, type VfsLease, type WorkerLease } from '#contracts/runner'
import { fanOut } from '../fan-out.ts'
import leases from '../index.ts'

const guard: Guard = {
  protect() {},
  callerOf: (request) => ({ tenantId: request.headers.authorization ?? 'acme', role: 'member', keyId: 'tak_test' }),
}

/** A runner with leases of several tenants, as its wire would tell them. */
class Leasing {
  readonly workers = new Map<string, WorkerLease[]>()
  readonly vfs = new Map<string, VfsLease[]>()
  state: FleetMember['state'] = 'live'
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

function poolOf(runners: readonly Leasing[]): RunnerPool {
  const links = runners.map((runner) => runner.link())
  return {
    all: () => links,
    fleet: () => runners.map(({ hash, state }) => ({ hash, state }) as FleetMember),
    owner: (id: string, runner = id.slice(5, 13)) => links.find(({ hash }) => hash === runner),
  } as unknown as RunnerPool
}

async function stage(t: TestContext) {
  const [a, b] = [new Leasing('00000001'), new Leasing('00000002')]
  const got: { store?: RunStore } = {}
  const grab = definePlugin({
    name: 'grab',
    requires: { store: RunStore },
    async setup(ctx) {
      got.store = ctx.deps.store
      return {}
    },
  })
  const kernel = await testKernel(t, [
    leases,
    await runStorePlugin(),
    grab,
    fake(RunnerPool, poolOf([a, b])),
    fake(ApiGuard, guard),
  ])
  const call = (url: string, tenant = 'acme') =>
    kernel.listeners['conductor']!.inject({ url, headers: { authorization: tenant } })
  const session = async (sessionId: string): Promise<string> => {
    const create = { name: 'writer', runtime: 'general' } as Profile
    const task = { profile: 'writer', prompt: 'hello' }
    await got.store!.start({
      tenantId: 'acme',
      runId: `run-${sessionId}`,
      sessionId,
      task,
      create: { profile: create },
    })
    return sessionId
  }
  return { a, b, call, session }
}

const worker = (sessionId: string, state = 'running'): WorkerLease => ({ sessionId, state }) as WorkerLease

test('without a substrate there is nothing to list and nothing to show', async (t) => {
  const { call, session } = await stage(t)
  const id = await session('sess-00000001-00000001')
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
  const { a, b, call } = await stage(t)
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
  const { a, b, call, session } = await stage(t)
  const id = await session('sess-00000001-00000001')
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

test('a runner that fails, is away or does not answer in time is left out', async () => {
  const [a, b, c, d] = ['00000001', '00000002', '00000003', '00000004'].map((hash) => new Leasing(hash))
  a!.workers.set('acme', [worker('s1')])
  b!.failing = true
  c!.state = 'unreachable'
  const pool = poolOf([a!, b!, c!, d!])
  const ask = (link: RunnerLink): Promise<readonly WorkerLease[]> =>
    // It never answers, and does not look at its signal either.
    link.hash === d!.hash ? new Promise(() => {}) : link.workerLeases('acme')
  assert.deepEqual(await fanOut(pool, ask, pino({ level: 'silent' }), 20), [worker('s1')])
  assert.equal(c!.asked, 0)
})
