import { type Static, Type } from '@sinclair/typebox'
import { access, type App, failures } from '#kernel'
import type { Guard } from '#contracts/auth'
import type { Kv } from '#contracts/kv'
import type { TenantLimits } from '#contracts/limits'
import { fleetErrors } from '#contracts/run-errors'
import { type Fleet, type FleetMember, type RunnerLink, RunnerTopology, type RunnerUsage } from '#contracts/runner'
import { rateLimit, SingleFlight } from '#kit'
import type { RunnerFleet } from './fleet.ts'

/** Milliseconds. A slower runner is shown without its figures, because one dead runner must not delay the whole answer. */
const probeTimeoutMs = 1_500

/** The result of one probe of a runner. */
interface Observation {
  readonly member: FleetMember
  /** The latest probe succeeded. */
  readonly healthy: boolean
  /** How long that probe took, in milliseconds. Null: the probe failed, or was skipped because the runner cannot be reached. */
  readonly latencyMs: number | null
  readonly topology: RunnerTopology | null
}

interface Probe {
  readonly at: number
  readonly done: Promise<Pick<Observation, 'latencyMs' | 'topology'>>
}

interface ObserverOptions {
  readonly fleet: Pick<RunnerFleet, 'members'>
  /** Milliseconds for which an observation is reused. */
  readonly freshMs: number
  readonly now?: () => number
}

/** Probes the runners on demand: each one at most once per `freshMs`, however many callers ask. */
export function createObserver({ fleet, freshMs, now = Date.now }: ObserverOptions): () => Promise<Observation[]> {
  const probes = new WeakMap<RunnerLink, Probe>()
  const probe = async (link: RunnerLink): Promise<Pick<Observation, 'latencyMs' | 'topology'>> => {
    const begun = performance.now()
    try {
      const topology = await link.topology(AbortSignal.timeout(probeTimeoutMs))
      return { topology, latencyMs: Math.round((performance.now() - begun) * 10) / 10 }
    } catch {
      return { topology: null, latencyMs: null }
    }
  }
  const latest = (link: RunnerLink): Probe => {
    const known = probes.get(link)
    if (known && now() - known.at < freshMs) return known
    const fresh = { at: now(), done: probe(link) }
    probes.set(link, fresh)
    return fresh
  }
  return () =>
    Promise.all(
      fleet.members().map(async (runner): Promise<Observation> => {
        const member = runner.describe()
        if (member.state === 'unreachable') return { member, healthy: false, latencyMs: null, topology: null }
        const seen = await latest(runner.link).done
        return { member, healthy: seen.topology !== null, ...seen }
      }),
    )
}

const state = (...names: string[]) => Type.Union(names.map((name) => Type.Literal(name)))
export const orNull = <T extends Parameters<typeof Type.Union>[0][number]>(schema: T, description: string) =>
  Type.Union([schema, Type.Null()], { description })

/** The state of a runner, as this conductor knows it. */
export const memberState = Type.Union([Type.Literal('live'), Type.Literal('draining'), Type.Literal('unreachable')])

const Slot = Type.Object({
  runtime: Type.String(),
  kind: Type.Union([Type.Literal('stub'), Type.Literal('sidecar')]),
  state: state('live', 'cold', 'degraded', 'unreachable'),
  observedInstances: orNull(
    Type.Array(Type.Object({ instance: Type.String(), inflight: Type.Integer(), lastSeenAt: Type.String() })),
    'Slots that share one sidecar show the same instances: do not add them up.',
  ),
})

/** One runner as tenants see it. Null means not measured. Specification 2.12. */
const TopologyEntry = Type.Object({
  hash: Type.String({ description: 'Part of the ids of the sessions that were created on it.' }),
  capabilities: Type.Array(Type.String(), { description: 'Runtimes; empty and known means all of them.' }),
  capabilitiesKnown: Type.Boolean(),
  state: memberState,
  healthy: Type.Boolean({ description: 'The latest probe succeeded.' }),
  latencyMs: orNull(Type.Number(), 'How long the latest probe took.'),
  activeSessions: orNull(Type.Integer(), 'In the memory of the process, across tenants.'),
  process: orNull(RunnerTopology.properties.process, 'Of the runner process.'),
  sessionsByRuntime: orNull(Type.Record(Type.String(), Type.Integer()), 'Across tenants.'),
  sidecars: orNull(Type.Array(Slot), 'One slot for each runtime.'),
})

interface TopologyRoutes {
  readonly guard: Guard
  readonly kv: Pick<Kv, 'hit'>
  readonly requestsPerMinute: number
  readonly observe: () => Promise<Observation[]>
}

export async function topologyRoutes(
  app: App,
  { guard, kv, requestsPerMinute, observe }: TopologyRoutes,
): Promise<void> {
  /** Each reading may probe the whole fleet, so a tenant gets a low rate limit. */
  const limit = await rateLimit(app, {
    name: 'topology',
    keyOf: (request) => `ao:topology:${guard.callerOf(request).tenantId}`,
    max: requestsPerMinute,
    hit: (...counted) => kv.hit(...counted),
    refused: fleetErrors.rateLimited,
  })
  app.get(
    '/api/topology',
    {
      ...access('member'),
      preHandler: limit,
      schema: {
        tags: ['topology'],
        summary: 'Show the runners',
        description:
          'In registry order, as this conductor sees them. Null means not measured, never zero. Counts are of whole processes, ' +
          'across tenants. 429 `rate_limited` above the requests per minute of a tenant.',
        response: { 200: Type.Array(TopologyEntry), ...failures(fleetErrors.rateLimited) },
      },
    },
    async () => (await observe()).map(entryOf),
  )
}

/** What a tenant may see of a runner: its state and its abilities, not its address. Specification 2.12. */
function entryOf({ member, healthy, latencyMs, topology }: Observation): Static<typeof TopologyEntry> {
  const { hash, capabilities, capabilitiesKnown, state } = member
  return {
    hash,
    capabilities: [...capabilities],
    capabilitiesKnown,
    state,
    healthy,
    latencyMs,
    activeSessions: topology?.activeSessions ?? member.activeSessions,
    process: topology?.process ?? null,
    sessionsByRuntime: topology?.sessionsByRuntime ?? null,
    sidecars: topology?.sidecars.map(slotOf) ?? null,
  }
}

const slotOf = ({ runtime, kind, state, observedInstances }: RunnerTopology['sidecars'][number]) => ({
  runtime,
  kind,
  // A stub has no sidecar on purpose, so its state is not shown as a fault.
  state: state === 'stub' ? 'cold' : state,
  observedInstances:
    observedInstances?.map(({ instance, inflight, lastSeenAt }) => ({
      instance: withoutHost(instance),
      inflight,
      lastSeenAt,
    })) ?? null,
})

/** The id of a sidecar instance without its host: a foreign sidecar may call itself `<host>:<id>` or `<host>/<id>`. */
const withoutHost = (instance: string): string =>
  instance.slice(Math.max(...[...':/@'].map((c) => instance.lastIndexOf(c))) + 1)

/** Milliseconds that all runners together may take. A runner that has not answered by then is left out. */
const usageWindowMs = 1_500

/**
 * Reports how much a tenant uses of the limits that hold on each runner: the figure of the runner where it uses most. Concurrent callers share one
 * answer.
 */
export function tellUsage(limits: TenantLimits, fleet: Pick<Fleet, 'askAll'>): void {
  const asking = new SingleFlight<readonly (RunnerUsage | undefined)[]>()
  const ask = (tenantId: string) =>
    asking.run(tenantId, () => fleet.askAll((link, signal) => link.usage(tenantId, signal), usageWindowMs))
  for (const limit of ['stateBytes', 'sandboxes', 'workspaceBytes'] as const) {
    limits.uses(limit, async (tenantId) => {
      const known = (await ask(tenantId)).flatMap((usage) => usage?.[limit] ?? [])
      return known.length === 0 ? undefined : Math.max(...known)
    })
  }
}
