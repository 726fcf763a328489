import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { startPostgres } from '#kit/postgres'
import { say } from '../../bench/command.ts'
import { createRandom } from '../random.ts'
import { injectFaults, startConductors } from './conductors.ts'
import { startEffects } from './effects.ts'
import { createSchedules, decideAll, repairAll, startLoad } from './load.ts'
import { check, countOpen } from './verdict.ts'

export interface ProofOptions {
  readonly minutes: number
  readonly seed: number
  /** Of the database and the logs. */
  readonly folder: string
  /** What has to be stopped when it is interrupted, last one first; emptied when it is over. */
  readonly stops: (() => Promise<unknown>)[]
}

export interface Proof {
  /** Of the table: names and values. */
  readonly figures: Readonly<Record<string, string>>
  readonly problems: readonly string[]
}

/** How long after the last fault everything is over: a lease, the heartbeat of a job and the next look for lost ones, one after the other. */
const settleMs = 180_000

/** Three conductors on a PostgreSQL of their own, at work on workflows and schedules while faults come over them, and what came of it. */
export async function proveWorkflows({ minutes, seed, folder, stops }: ProofOptions): Promise<Proof> {
  const postgres = await startPostgres({ dataDir: join(folder, 'postgres'), settings: { fsync: 'off' } })
  stops.push(() => postgres.stop())
  const effects = await startEffects(createRandom(seed + 1))
  stops.push(effects.stop)
  const conductors = await startConductors(postgres.dsn(), folder, effects.url)
  stops.push(() => conductors.stop())
  const schedules = await createSchedules(conductors, effects.url)
  const dsn = postgres.dsn()
  const load = startLoad(conductors, effects.url, createRandom(seed + 2), () => countOpen(dsn))
  const faults = await injectFaults(conductors, createRandom(seed), minutes * 60_000, say)
  say('the last fault is over')
  await load.finish()
  for (const id of schedules) await conductors.ask('POST', `/api/workflows/schedules/${id}/pause`)
  const began = performance.now()
  const decisions = createRandom(seed + 3)
  const mend = async (): Promise<void> => {
    await repairAll(conductors)
    await decideAll(conductors, decisions, load.told)
  }
  const left = await settled(dsn, mend, began)
  const settledMs = performance.now() - began
  const { problems, figures } = await check(dsn, effects.seen, load.told)
  await stopAll(stops)
  return {
    problems: [...problems, ...(left > 0 ? [`${left} workflows are not over`] : [])],
    figures: {
      'faults of conductors': Object.entries(faults)
        .map(([name, count]) => `${count} ${name}`)
        .join(', '),
      'workflows begun by clients': String(load.begun),
      ...figures,
      'workflows all over after the last fault': `${(settledMs / 1_000).toFixed(1)} s`,
    },
  }
}

export async function stopAll(stops: (() => Promise<unknown>)[]): Promise<void> {
  for (const fn of stops.splice(0).toReversed()) await fn()
}

/** Waits until nothing is under way, mending what pauses meanwhile. Resolves to how many workflows are left. */
async function settled(dsn: string, mend: () => Promise<void>, began: number): Promise<number> {
  for (;;) {
    await mend()
    const open = await countOpen(dsn)
    if (open === 0 || performance.now() - began > settleMs) return open
    await sleep(500)
  }
}
