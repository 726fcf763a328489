import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { pino } from 'pino'
import { AppError, definePlugin } from '#kernel'
import { testKernel } from '#testing'
import type { Guard } from '#contracts/auth'
import type { Kv } from '#contracts/kv'
import type { FleetMember, RunnerLink, RunnerTopology } from '#contracts/runner'
import { type Membership, membershipRoutes } from '../membership.ts'
import type { RunnerFleet } from '../fleet.ts'
import { createObserver, topologyRoutes } from '../topology.ts'

const guard: Guard = {
  protect() {},
  callerOf: (request) => ({ tenantId: request.headers.authorization ?? 'acme', role: 'member', keyId: 'tak_test' }),
}

const seen: RunnerTopology = {
  process: { allocBytes: 1, sysBytes: 2, heapInuseBytes: 3, numGoroutine: null, numCPU: 4, uptimeSeconds: 5 },
  activeSessions: 2,
  sessionsByRuntime: { general: 2 },
  sidecars: [
    {
      runtime: 'general',
      kind: 'sidecar',
      state: 'live',
      url: 'http://10.0.0.9:7070',
      observedInstances: [
        { instance: 'node-7.internal:4f2c', inflight: 1, lastSeenAt: '2026-01-01T00:00:00.000Z' },
        { instance: 'plain', inflight: 0, lastSeenAt: '2026-01-01T00:00:00.000Z' },
      ],
    },
    { runtime: 'runtime_a', kind: 'stub', state: 'stub', url: '', observedInstances: null },
  ],
}

const member = (hash: string, state: FleetMember['state'] = 'live'): FleetMember => ({
  hash,
  state,
  capabilities: ['general'],
  capabilitiesKnown: true,
  substrates: [],
  substratesKnown: true,
  activeSessions: state === 'unreachable' ? null : 9,
})

interface Asked {
  probes: number
  answer: () => Promise<RunnerTopology>
}

function fleetOf(members: readonly FleetMember[]) {
  const asked = new Map<string, Asked>(members.map(({ hash }) => [hash, { probes: 0, answer: async () => seen }]))
  const links = members.map(({ hash }) => {
    const of = asked.get(hash)!
    return { hash, topology: () => (of.probes++, of.answer()) } as unknown as RunnerLink
  })
  const fleet = {
    members: () => members.map((one, i) => ({ link: links[i], describe: () => one })),
  } as unknown as RunnerFleet
  return { fleet, asked }
}

/** The routes over a fleet and a membership that a test scripts. */
async function stage(t: TestContext, members: readonly FleetMember[], requestsPerMinute = 30) {
  const { fleet, asked } = fleetOf(members)
  const calls: unknown[] = []
  const address = (hash: string) => ({ url: `http://runner-${hash}`, hash, state: 'draining' as const })
  const known = (hash: string) => (hash === '00000001' ? address(hash) : undefined)
  const membership: Membership = {
    async reconcile(urls) {
      calls.push(urls)
      if (urls?.includes('nonsense')) throw new AppError('invalid_request', 400)
      return [{ ...address('00000001'), added: true }]
    },
    drain: known,
    undrain: known,
    remove: async (hash) => (known(hash) ? { ...address(hash), unroutableSessions: null } : undefined),
  }
  const hits = new Map<string, number>()
  const kv: Pick<Kv, 'hit'> = {
    async hit(key, limit) {
      const count = (hits.get(key) ?? 0) + 1
      if (count > limit) return { allowed: false, count: limit, retryAfterMs: 41_500 }
      hits.set(key, count)
      return { allowed: true, count, retryAfterMs: 0 }
    },
  }
  const mounted = definePlugin({
    name: 'mounted',
    async setup({ routes }) {
      const observe = createObserver({ fleet, freshMs: 2_000 })
      routes('conductor', async (app) => topologyRoutes(app, { guard, kv, requestsPerMinute, observe }))
      routes('internal', async (app) => membershipRoutes(app, membership, pino({ level: 'silent' })))
      return {}
    },
  })
  const kernel = await testKernel(t, [mounted])
  const read = (tenant = 'acme') =>
    kernel.listeners['conductor']!.inject({ url: '/api/topology', headers: { authorization: tenant } })
  const change = (what: string, body?: object) =>
    kernel.listeners['internal']!.inject({
      method: 'POST',
      url: `/internal/topology/${what}`,
      ...(body ? { payload: body } : {}),
    })
  return { read, change, asked, calls }
}

test('tenants see how runners are, not where: no addresses, no host names, null for what was not measured', async (t) => {
  const { read } = await stage(t, [member('00000001'), member('00000002', 'unreachable')])
  const reply = await read()
  assert.equal(reply.statusCode, 200)
  const [first, second] = reply.json<Record<string, unknown>[]>()
  const { latencyMs, ...rest } = first!
  assert.equal(typeof latencyMs, 'number')
  const at = '2026-01-01T00:00:00.000Z'
  assert.deepEqual(rest, {
    hash: '00000001',
    capabilities: ['general'],
    capabilitiesKnown: true,
    state: 'live',
    healthy: true,
    activeSessions: 2,
    process: seen.process,
    sessionsByRuntime: { general: 2 },
    sidecars: [
      {
        runtime: 'general',
        kind: 'sidecar',
        state: 'live',
        observedInstances: [
          { instance: '4f2c', inflight: 1, lastSeenAt: at },
          { instance: 'plain', inflight: 0, lastSeenAt: at },
        ],
      },
      { runtime: 'runtime_a', kind: 'stub', state: 'cold', observedInstances: null },
    ],
  })
  assert.deepEqual(second, {
    hash: '00000002',
    capabilities: ['general'],
    capabilitiesKnown: true,
    state: 'unreachable',
    healthy: false,
    latencyMs: null,
    activeSessions: null,
    process: null,
    sessionsByRuntime: null,
    sidecars: null,
  })
  assert.doesNotMatch(reply.body, /http|10\.0\.0\.9|node-7/)
})

test('however many read, each runner is probed once until its observation is old, and one that is away not at all', async () => {
  const { fleet, asked } = fleetOf([member('00000001'), member('00000002', 'unreachable')])
  let now = 0
  const observe = createObserver({ fleet, freshMs: 2_000, now: () => now })
  let finish: (topology: RunnerTopology) => void = () => {}
  asked.get('00000001')!.answer = () => new Promise((resolve) => (finish = resolve))
  const readings = Array.from({ length: 50 }, observe)
  finish(seen)
  for (const sights of await Promise.all(readings)) assert.equal(sights[0]!.topology, seen)
  now = 1_999
  await observe()
  assert.equal(asked.get('00000001')!.probes, 1)
  assert.equal(asked.get('00000002')!.probes, 0)
  now = 2_000
  const later = observe()
  finish(seen)
  await later
  assert.equal(asked.get('00000001')!.probes, 2)
})

test('a runner that fails its probe is not healthy, and the others are shown all the same', async (t) => {
  const { read, asked } = await stage(t, [member('00000001'), member('00000002')])
  asked.get('00000001')!.answer = () => Promise.reject(new Error('timed out'))
  const entries = (await read()).json<{ healthy: boolean; process: unknown; activeSessions: number }[]>()
  assert.deepEqual(
    entries.map(({ healthy, process, activeSessions }) => [healthy, process !== null, activeSessions]),
    [
      [false, false, 9],
      [true, true, 2],
    ],
  )
})

test('a tenant has its readings a minute, and is told when the next one is due', async (t) => {
  const { read } = await stage(t, [member('00000001')], 2)
  const first = await read()
  assert.deepEqual(
    [first.headers['ratelimit-policy'], first.headers['ratelimit']],
    ['"topology";q=2;w=60', '"topology";r=1;t=60'],
  )
  assert.equal((await read()).statusCode, 200)
  const refused = await read()
  assert.equal(refused.statusCode, 429)
  assert.equal(refused.json<{ error: string }>().error, 'rate_limited')
  assert.deepEqual([refused.headers['retry-after'], refused.headers['ratelimit']], ['42', '"topology";r=0;t=42'])
  assert.equal((await read('globex')).statusCode, 200, 'another tenant has its own')
})

test('the signed plane changes the fleet by URL and by hash, and shows addresses', async (t) => {
  const { change, calls } = await stage(t, [member('00000001')])
  const runner = { url: 'http://runner-00000001', hash: '00000001', state: 'draining' }
  assert.deepEqual((await change('reconcile')).json(), { runners: [{ ...runner, added: true }] })
  await change('reconcile', { urls: ['http://b:2'] })
  assert.deepEqual(calls, [undefined, ['http://b:2']])
  assert.equal((await change('reconcile', { urls: ['nonsense'] })).statusCode, 400)
  assert.equal((await change('reconcile', { urls: [] })).statusCode, 400)
  for (const what of ['drain', 'undrain']) {
    assert.deepEqual((await change(what, { hash: '00000001' })).json(), runner)
  }
  assert.deepEqual((await change('remove', { hash: '00000001' })).json(), { ...runner, unroutableSessions: null })
  for (const what of ['drain', 'undrain', 'remove']) {
    const unknown = await change(what, { hash: 'ffffffff' })
    assert.deepEqual([unknown.statusCode, unknown.json<{ error: string }>().error], [404, 'not_found'])
    assert.equal((await change(what, { hash: 'not-a-hash' })).statusCode, 400)
    assert.equal((await change(what)).statusCode, 400)
  }
})
