import { Type } from '@sinclair/typebox'
import { RunnerTopology } from '#contracts/runner'

const state = (...names: string[]) => Type.Union(names.map((name) => Type.Literal(name)))
const orNull = <T extends Parameters<typeof Type.Union>[0][number]>(schema: T, description: string) =>
  Type.Union([schema, Type.Null()], { description })

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
export const TopologyEntry = Type.Object({
  hash: Type.String({ description: 'Part of the ids of the sessions that were created on it.' }),
  capabilities: Type.Array(Type.String(), { description: 'Runtimes; empty and known means all of them.' }),
  capabilitiesKnown: Type.Boolean(),
  state: Type.Union([Type.Literal('live'), Type.Literal('draining'), Type.Literal('unreachable')]),
  healthy: Type.Boolean({ description: 'The latest probe succeeded.' }),
  latencyMs: orNull(Type.Number(), 'How long the latest probe took.'),
  activeSessions: orNull(Type.Integer(), 'In the memory of the process, across tenants.'),
  process: orNull(RunnerTopology.properties.process, 'Of the runner process.'),
  sessionsByRuntime: orNull(Type.Record(Type.String(), Type.Integer()), 'Across tenants.'),
  sidecars: orNull(Type.Array(Slot), 'One slot for each runtime.'),
})

const address = {
  url: Type.String({ description: 'Empty for a runner in the process of the conductor.' }),
  hash: Type.String(),
  state: TopologyEntry.properties.state,
}
export const Address = Type.Object(address)
export const HashBody = Type.Object(
  { hash: Type.String({ pattern: '^[0-9a-f]{8}$', description: 'As `GET /api/topology` shows it.' }) },
  { additionalProperties: false },
)
export const ReconcileBody = Type.Object(
  {
    urls: Type.Optional(
      Type.Array(Type.String({ minLength: 1, maxLength: 2_048 }), {
        minItems: 1,
        maxItems: 1_000,
        description: 'Base URLs of runners; those of RUNNER_URLS unless given.',
      }),
    ),
  },
  { additionalProperties: false },
)
export const Reconciled = Type.Object({
  runners: Type.Array(Type.Object({ ...address, added: Type.Boolean({ description: 'It was not known before.' }) })),
})
export const Removed = Type.Object({
  ...address,
  unroutableSessions: orNull(
    Type.Integer(),
    'Sessions that it still had. Each goes on on another live runner with its last saved conversation; without one it cannot be reached.',
  ),
})
