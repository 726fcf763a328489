import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { hearWarnings, type Measured, measureProcess, writeSnapshot } from '../inspector.ts'
import type { Member } from '../cluster.ts'
import { countOf, limits, type Sample, type Seen } from './verdict.ts'

/** Measures every process of the service, one after the other. */
export interface Watch {
  /** Memory in use of each process at the last reading, MiB. */
  latest(): string
  sample(minutes: number): Promise<void>
  snapshots(directory: string, label: string): Promise<void>
  /** Waits until the processes are at rest, at most for `restMs`, and returns all measurements. */
  end(): Promise<Seen[]>
}

/** Unused connections are closed after up to 72 s. */
const restMs = 120_000
const lookMs = 5_000

export async function startWatch(members: readonly Member[]): Promise<Watch> {
  const watched = await Promise.all(
    members.map(async ({ name, process }) => {
      const warnings: string[] = []
      hearWarnings(process.child, (text) => void warnings.push(text))
      return {
        name,
        child: process.child,
        warnings,
        samples: [] as Sample[],
        before: await measureProcess(process.child),
      }
    }),
  )
  const rested = async ({ child, before }: (typeof watched)[number], until: number): Promise<Measured> => {
    for (;;) {
      const now = await measureProcess(child)
      if (countOf(now) - countOf(before) <= limits.resourcesLeft || performance.now() > until) return now
      await sleep(lookMs)
    }
  }
  return {
    latest: () =>
      watched
        .map(({ name, samples }) => `${name} ${((samples.at(-1)?.heapUsed ?? 0) / 1024 ** 2).toFixed(1)}`)
        .join(', '),
    async sample(minutes) {
      // One after the other, because all at once would stop the whole service for garbage collection.
      for (const { child, samples } of watched) samples.push({ minutes, ...(await measureProcess(child)) })
    },
    async snapshots(directory, label) {
      await mkdir(directory, { recursive: true })
      for (const { name, child } of watched) {
        await writeSnapshot(child, join(directory, `${name.replace(' ', '-')}-${label}.heapsnapshot`))
      }
    },
    async end() {
      const until = performance.now() + restMs
      const seen: Seen[] = []
      for (const one of watched) {
        const { name, before, samples, warnings } = one
        seen.push({ name, before, samples, warnings, after: await rested(one, until) })
      }
      return seen
    },
  }
}
