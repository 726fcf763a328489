import type { Static } from '@sinclair/typebox'
import type { RunnerTopology } from '#contracts/runner'
import type { Sight } from './observe.ts'
import type { TopologyEntry } from './schema.ts'

type Entry = Static<typeof TopologyEntry>
type Slot = RunnerTopology['sidecars'][number]

/** What a tenant may see of a runner: how it is and what it can do, not where it is. Specification 2.12. */
export function entryOf({ member, healthy, latencyMs, topology }: Sight): Entry {
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

const slotOf = ({ runtime, kind, state, observedInstances }: Slot) => ({
  runtime,
  kind,
  // A stub is configured to have nobody behind it, which is no fault.
  state: state === 'stub' ? 'cold' : state,
  observedInstances:
    observedInstances?.map(({ instance, inflight, lastSeenAt }) => ({
      instance: withoutHost(instance),
      inflight,
      lastSeenAt,
    })) ?? null,
})

/** A sidecar of another maker may call itself `<host>:<id>` or `<host>/<id>`. */
const withoutHost = (instance: string): string =>
  instance.slice(Math.max(...[...':/@'].map((c) => instance.lastIndexOf(c))) + 1)
