import type { TestContext } from 'node:test'
import { AppError } from '#kernel'
import type { BroadcastPage } from '#contracts/broadcast'
import type { Profile } from '#contracts/profiles'
import {
  type BroadcastPool,
  type ExecuteRun,
  RunnerCore,
  type RunnerService,
  type RunnerSession,
  RunnerSessions,
  type RunnerTopology,
  type WorkerLease,
} from '#contracts/runner'
import type { StateBundle } from '#contracts/runtime'
import { type SidecarLink, Sidecars } from '#contracts/sidecar'
import { Toolkit, type ToolSpec } from '#contracts/tools'
import { runnerWire, tenantHeader } from '#contracts/wire/runner'
import { createPeers, type Peer } from '#kit'
import { fake, testKernel, testProfile } from '#testing'
import plugin from '../index.ts'

export const profile = (name = 'p', over: Partial<Profile> = {}): Profile =>
  testProfile(name, { tools: ['calculate'], limits: { maxSteps: 3 }, metadata: { team: 'blue' }, ...over })

export const topology: RunnerTopology = {
  process: { allocBytes: 1, sysBytes: 2, heapInuseBytes: 3, numGoroutine: null, numCPU: 4, uptimeSeconds: 5 },
  activeSessions: 1,
  sessionsByRuntime: { general: 1 },
  sidecars: [
    { runtime: 'general', kind: 'sidecar', state: 'unreachable', url: 'http://sidecar:7070', observedInstances: null },
  ],
}

export interface Hydrated {
  readonly tenantId: string
  readonly id: string
  readonly profile: Profile
  readonly bundle: StateBundle | undefined
}

/** A core that keeps sessions and profiles and runs what `script` says. */
export async function wireOf(
  t: TestContext,
  script: (run: ExecuteRun, signal: AbortSignal) => AsyncIterable<string> = async function* () {},
  listen = false,
) {
  const profiles = new Map<string, Profile>()
  const pools = new Map<string, BroadcastPool>()
  const taken: { tenant: string; page: BroadcastPage }[] = []
  const sessions = new Map<string, RunnerSession>()
  const states = new Map<string, StateBundle | AppError | Error>()
  const hydrated: Hydrated[] = []
  const cancelled: string[] = []
  const leases = new Map<string, WorkerLease[]>()
  const health = { failing: false, instance: 'i-7' }
  const spec: ToolSpec = { name: 'calculate', description: 'Calculates.', inputSchema: { type: 'object' } }
  const unknown = () => new AppError('unknown_session', 404)
  const add = (tenantId: string, id: string, over: Partial<RunnerSession> = {}): RunnerSession => {
    const at = '2026-01-01T00:00:00.000Z'
    const session: RunnerSession = {
      id,
      tenantId,
      profile: profile(),
      tools: ['calculate'],
      status: 'idle',
      createdAt: at,
      lastUsedAt: at,
      ...over,
    }
    sessions.set(id, session)
    return session
  }
  const core: RunnerService = {
    hash: 'abcdef01',
    info: async () => ({
      hash: 'abcdef01',
      instance: 'i-1',
      capabilities: ['general'],
      capabilitiesKnown: true,
      substrates: [],
      substratesKnown: true,
    }),
    putProfile: async (tenant, p) => void profiles.set(`${tenant}/${p.name}`, p),
    deleteProfile: async (tenant, name) => void profiles.delete(`${tenant}/${name}`),
    putPool: async (tenant, p) => void pools.set(`${tenant}/${p.id}`, p),
    deletePool: async (tenant, id) => void pools.delete(`${tenant}/${id}`),
    pools: (tenant) => [...pools].filter(([key]) => key.startsWith(`${tenant}/`)).map(([, p]) => p),
    async takeBroadcast(tenant, page) {
      taken.push({ tenant, page })
      return page.revision
    },
    behind: async (revisions) => Object.keys(revisions).filter((tenant) => revisions[tenant]! > 3),
    profiles: (tenant) => [...profiles].filter(([key]) => key.startsWith(`${tenant}/`)).map(([, p]) => p),
    createSession(tenant, name) {
      if (!profiles.has(`${tenant}/${name}`)) throw new AppError('unknown_profile', 404)
      return add(tenant, 'sess-abcdef01-00000001', { profile: profiles.get(`${tenant}/${name}`)! })
    },
    getSession: async (_tenant, id) => sessions.get(id),
    async deleteSession(tenant, id) {
      if (sessions.get(id)?.tenantId === tenant) sessions.delete(id)
    },
    async hydrate(tenantId, id, p, bundle) {
      if ((sessions.get(id)?.tenantId ?? tenantId) !== tenantId) throw unknown()
      hydrated.push({ tenantId, id, profile: p, bundle })
    },
    unsaved: async () => [{ tenantId: 'acme', sessionId: 'sess-abcdef01-00000001' }],
    topology: async () => topology,
    workerLeases: async (tenant) => (tenant === undefined ? [...leases.values()].flat() : (leases.get(tenant) ?? [])),
    workerLease: async (tenant, id) => leases.get(tenant)?.find((lease) => lease.sessionId === id),
    invalidateSandbox: async (provider, sandboxId) => Number(`${provider}/${sandboxId}` === 'vm/box-1'),
    delegations: async () => [],
    answerDelegation: async () => {},
    async checkSession() {
      await sidecar.health()
    },
    vfsLeases: async () => [],
    vfsLease: async () => undefined,
    async exportState(tenant, id) {
      if (sessions.get(id)?.tenantId !== tenant) throw unknown()
      const state = states.get(id)
      if (state instanceof Error) throw state
      return state
    },
    cancelRun: (tenant, runId, reason) => void cancelled.push([tenant, runId, reason ?? []].flat().join('/')),
    async *execute(tenant, run, signal) {
      if (!run.create && sessions.get(run.sessionId)?.tenantId !== tenant) throw unknown()
      for await (const text of script(run, signal)) yield Buffer.from(text)
    },
    async *attach(_tenant, from, signal) {
      if (from.runId !== runBody.runId) throw new AppError('unknown_run', 404)
      for await (const text of script({ ...runBody, firstSeq: from.afterSeq + 1 }, signal)) yield Buffer.from(text)
    },
  }
  const sidecar = {
    async health() {
      if (health.failing) throw new AppError('sidecar_unreachable', 503, { message: 'The sidecar cannot be reached.' })
      return { ok: true, runtime: 'all', runtimes: ['general'], instance: health.instance, inflight: 2 }
    },
  } as unknown as SidecarLink
  const kernel = await testKernel(
    t,
    [
      plugin,
      fake(RunnerCore, core),
      fake(RunnerSessions, {
        get: (id) => sessions.get(id),
        list: () => [...sessions.values()],
        toolSpecs: () => [spec],
        async invokeTool({ tools }, name, input) {
          if (!tools.includes(name)) throw new AppError('tool_not_allowed', 403)
          return input === undefined
            ? { ok: false, content: 'No input.' }
            : { ok: true, content: JSON.stringify(input) }
        },
      }),
      fake(Sidecars, {
        forRuntime: () => sidecar,
        runtimes: async () => ['general'],
        slots: () => [
          { runtime: 'general', mode: 'sidecar', url: 'http://sidecar:7070' },
          { runtime: 'runtime_a', mode: 'stub', url: '' },
        ],
      }),
      fake(Toolkit, { specs: () => [spec], has: () => true, invoke: async () => ({ ok: true, content: '' }) }),
    ],
    { listeners: ['runner'], listen },
  )
  const app = kernel.listeners['runner']!
  const call = async (
    method: 'GET' | 'POST' | 'DELETE',
    url: string,
    { tenant = 'acme', body }: { tenant?: string; body?: unknown } = {},
  ) => {
    const reply = await app.inject({
      method,
      url,
      headers: tenant === '' ? {} : { 'x-tenant-id': tenant },
      ...(body === undefined ? {} : { payload: body as object }),
    })
    return reply
  }
  return { kernel, call, add, sessions, states, hydrated, cancelled, leases, health, taken }
}

export const runBody = { runId: 'r1', sessionId: 's1', prompt: 'hi', firstSeq: 1, timeoutMs: 1000 }
export const until = async (condition: () => boolean): Promise<void> => {
  while (!condition()) await new Promise((resolve) => setImmediate(resolve))
}

/** A conductor's way to the runner: HTTP alone, or a link that stands. */
export async function peerOf(t: TestContext, url: string, links: boolean): Promise<Peer> {
  const peers = createPeers({
    links,
    connectMs: 2_000,
    timeoutMs: 5_000,
    identity: { tenantHeader },
    faults: {
      lost: ({ cause }) => new AppError('lost', 502, { cause }),
      failed: (options) => new AppError('bad_answer', 502, options),
    },
  })
  t.after(() => peers.close())
  const peer = peers.at(url)
  while (links && !peer.linked) await peer.ask(runnerWire.info, {})
  return peer
}
