import type { Cluster } from '../bench/cluster.ts'

export interface Worst {
  /** The longest delay of an event loop, whyever, was at most so long: the upper bound of its bucket, in milliseconds. */
  readonly deafMs: number
  /** The longest step took at least so much of its processor: the lower bound of its bucket. `stepBy` is the process. */
  readonly stepMs: number
  readonly stepBy: string
}

const names = { deaf: 'agent_orc_event_loop_delay_seconds', step: 'agent_orc_event_loop_step_cpu_seconds' }

/** How long the event loops of a fleet kept everybody waiting, by what each process counts in buckets. */
export class LoopFigures {
  readonly #cluster: Cluster
  readonly #before = new Map<string, number>()

  constructor(cluster: Cluster) {
    this.#cluster = cluster
  }
  /** The worst since the last call. */
  async worst(): Promise<Worst> {
    const worst = { deafMs: 0, stepMs: 0, stepBy: '' }
    for (const { name, role, urls } of this.#cluster.members) {
      const text = await (await fetch(`${urls['operations'] ?? urls[role]}/metrics`)).text()
      worst.deafMs = Math.max(worst.deafMs, ...this.#news(name, names.deaf, text).map(({ to }) => to))
      const stepMs = Math.max(0, ...this.#news(name, names.step, text).map(({ from }) => from))
      if (stepMs > worst.stepMs) Object.assign(worst, { stepMs, stepBy: name })
    }
    return worst
  }

  /** The buckets in which something fell since the last call, in milliseconds. */
  #news(member: string, histogram: string, text: string): { readonly from: number; readonly to: number }[] {
    const found: { from: number; to: number }[] = []
    let below = 0
    let from = 0
    for (const [, le, value] of text.matchAll(
      new RegExp(`^${histogram}_bucket\\{le="([^"]+)"[^}]*\\} (\\d+)$`, 'gm'),
    )) {
      const to = le === '+Inf' ? Infinity : Number(le) * 1_000
      const key = `${member} ${histogram} ${le}`
      const count = Number(value) - below
      if (count > (this.#before.get(key) ?? 0)) found.push({ from, to })
      this.#before.set(key, count)
      below = Number(value)
      from = to
    }
    return found
  }
}
