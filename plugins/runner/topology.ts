import { availableParallelism } from 'node:os'
import type { RunnerTopology } from '#contracts/runner'
import type { SidecarHealth, SidecarLink, Sidecars } from '#contracts/sidecar'
import type { SessionTable } from './sessions.ts'

type Slot = RunnerTopology['sidecars'][number]

const probeMs = 1_000
/** How long a success counts as recent: then a failed probe is `degraded`, not `unreachable`. */
const recentMs = 60_000

/** How this process is, what it holds and which sidecars it sees. */
export function createTopology(sidecars: Sidecars, table: SessionTable): () => Promise<RunnerTopology> {
  const lastSeen = new WeakMap<SidecarLink, { readonly health: SidecarHealth; readonly at: number }>()
  const probe = async (link: SidecarLink): Promise<Pick<Slot, 'state' | 'observedInstances'>> => {
    const health = await link.health(AbortSignal.timeout(probeMs)).catch(() => undefined)
    if (health) lastSeen.set(link, { health, at: Date.now() })
    const seen = lastSeen.get(link)
    if (!seen || (!health && Date.now() - seen.at > recentMs)) return { state: 'unreachable', observedInstances: null }
    const { instance, inflight } = seen.health
    return {
      state: health?.ok ? 'live' : 'degraded',
      // A sidecar of another maker may not say which instance it is; then none was observed.
      observedInstances: instance === '' ? null : [{ instance, inflight, lastSeenAt: new Date(seen.at).toISOString() }],
    }
  }
  return async () => {
    await sidecars.runtimes()
    // Each distinct sidecar is asked once, however many runtimes share it.
    const probes = new Map<SidecarLink, ReturnType<typeof probe>>()
    const slots = await Promise.all(
      sidecars.slots().map(async ({ runtime, mode, url }): Promise<Slot> => {
        if (mode === 'stub') return { runtime, kind: 'stub', state: 'stub', url, observedInstances: [] }
        const link = sidecars.forRuntime(runtime)
        const probing = probes.get(link) ?? probe(link)
        probes.set(link, probing)
        return { runtime, kind: 'sidecar', url, ...(await probing) }
      }),
    )
    const sessionsByRuntime = table.byRuntime()
    return { process: processSnapshot(), activeSessions: table.size, sessionsByRuntime, sidecars: slots }
  }
}

function processSnapshot(): RunnerTopology['process'] {
  const memory = process.memoryUsage()
  return {
    allocBytes: memory.heapUsed,
    sysBytes: memory.rss,
    heapInuseBytes: memory.heapTotal,
    // Node has no goroutines, and a zero would read as a measurement.
    numGoroutine: null,
    numCPU: availableParallelism(),
    uptimeSeconds: Math.round(process.uptime()),
  }
}
