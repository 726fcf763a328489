import type { Fleet } from '../fleet.ts'
import { type Name, stateful } from '../schedule.ts'

const everyMs = 100
const answerMs = 1_000

/** What a balancer that asks `/readyz` knows about the gateways and conductors. */
export interface Readiness {
  isReady(name: Name): boolean
  stop(): void
}

/** The fleet needs it, so it is made first and told later whom to ask. */
export function createReadiness(): Readiness & { watch(fleet: Pick<Fleet, 'url'>): void } {
  const ready = new Set<Name>()
  let stopped = false
  const probe = async (fleet: Pick<Fleet, 'url'>, name: Name): Promise<void> => {
    if (stopped) return
    const signal = AbortSignal.timeout(answerMs)
    const reply = await fetch(`${fleet.url(name)}/readyz`, { signal }).catch(() => undefined)
    await reply?.body?.cancel()
    if (reply?.status === 200) ready.add(name)
    else ready.delete(name)
    setTimeout(() => void probe(fleet, name), everyMs)
  }
  return {
    isReady: (name) => ready.has(name),
    watch(fleet) {
      for (const name of stateful) void probe(fleet, name)
    },
    stop() {
      stopped = true
    },
  }
}
