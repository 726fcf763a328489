import type { Cluster } from '../cluster.ts'
import { type Name, stateful } from '../schedule.ts'

const everyMs = 100
const answerMs = 1_000

/** What a balancer that asks `/readyz` knows about the gateways and conductors. */
export interface Readiness {
  isReady(name: Name): boolean
  stop(): void
}

/** The cluster needs it, so it is made first and told later whom to ask. */
export function createReadiness(): Readiness & { watch(cluster: Pick<Cluster, 'url'>): void } {
  const ready = new Set<Name>()
  let stopped = false
  const probe = async (cluster: Pick<Cluster, 'url'>, name: Name): Promise<void> => {
    if (stopped) return
    const signal = AbortSignal.timeout(answerMs)
    const reply = await fetch(`${cluster.url(name)}/readyz`, { signal }).catch(() => undefined)
    await reply?.body?.cancel()
    if (reply?.status === 200) ready.add(name)
    else ready.delete(name)
    setTimeout(() => void probe(cluster, name), everyMs)
  }
  return {
    isReady: (name) => ready.has(name),
    watch(cluster) {
      for (const name of stateful) void probe(cluster, name)
    },
    stop() {
      stopped = true
    },
  }
}
