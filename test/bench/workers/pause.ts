import { openLaunches, sandboxProviderOf } from '#testing'
import { loadPlugin } from '../../../kernel/config.ts'
import { median } from '../statistics.ts'

export interface PauseFigures {
  readonly provider: string
  /** Milliseconds of the provider's own calls, without a runner around them. */
  readonly launch: number
  readonly pause: number
  readonly resume: number
}

const settings = { process: { allow: true }, bubblewrap: {} } as const

/** Times a substrate alone, with the small worker of the conformance suite. */
export async function measurePauses(provider: keyof typeof settings, rounds: number): Promise<PauseFigures> {
  const stops: (() => void | Promise<void>)[] = []
  const scope = { after: (fn: () => void | Promise<void>) => void stops.push(fn) } as never
  const times = { launch: [] as number[], pause: [] as number[], resume: [] as number[] }
  const timed = async (what: keyof typeof times, work: () => Promise<unknown>): Promise<void> => {
    const began = performance.now()
    await work()
    times[what].push(performance.now() - began)
  }
  try {
    // Loaded as a role file would name it.
    const plugin = await loadPlugin(`providers/sandbox-local/${provider}`, '')
    const entry = { name: provider, plugin, config: settings[provider] }
    const substrate = (await sandboxProviderOf(scope, provider, [entry]))!
    const launches = await openLaunches(scope, substrate)
    for (let round = 0; round < rounds; round++) {
      const { order, sandboxId } = await launches.start()
      await timed('pause', () => substrate.pause(sandboxId))
      await timed('resume', () => substrate.resume(sandboxId, order))
      await substrate.destroy(sandboxId)
      await timed('launch', () => launches.launch())
    }
    return { provider, launch: median(times.launch), pause: median(times.pause), resume: median(times.resume) }
  } finally {
    for (const stop of stops.toReversed()) await stop()
  }
}
