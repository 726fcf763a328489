// `npm run chaos:workflows`: three conductors on one PostgreSQL carry on workflows and schedules while they are killed, frozen and cut off
// from it. In the end every workflow has come to its right end, no attempt had its effect twice, and every time of a schedule had one
// outcome. See docs/reliability.md.
import { parseArgs } from 'node:util'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { startPostgres } from '#kit/postgres'
import { runCommand, say } from '../../bench/command.ts'
import { draw } from '../../bench/table.ts'
import { createRandom } from '../random.ts'
import { injectFaults, startConductors } from './conductors.ts'
import { startEffects } from './effects.ts'
import { check, countOpen } from './verdict.ts'
import { createSchedules, decideAll, repairAll, startLoad } from './load.ts'

interface Options {
  readonly minutes: number
  readonly seed: number
}
const usage = 'npm run chaos:workflows -- [--minutes 3] [--seed N]'
function readOptions(args: readonly string[]): Options {
  const { values } = parseArgs({
    args: [...args],
    options: {
      minutes: { type: 'string', default: '3' },
      seed: { type: 'string', default: String(Math.floor(Math.random() * 1e9)) },
    },
  })
  const minutes = Number(values.minutes)
  const seed = Number(values.seed)
  if (!(minutes > 0) || !Number.isSafeInteger(seed)) throw new Error('--minutes and --seed take numbers')
  return { minutes, seed }
}

/** How long after the last fault everything is over: a lease, the heartbeat of a job and the next look for lost ones, one after the other. */
const settleMs = 180_000

async function main({ minutes, seed }: Options): Promise<boolean> {
  const folder = await mkdtemp(join(tmpdir(), 'agent-orc-chaos-workflows-'))
  const stops: (() => Promise<unknown>)[] = []
  const stop = async (): Promise<void> => {
    for (const fn of stops.splice(0).toReversed()) await fn()
  }
  process.once('SIGINT', () => void stop().then(() => process.exit(130)))
  try {
    say(`seed ${seed}, ${minutes} min, logs in ${folder}`)
    const postgres = await startPostgres({ dataDir: join(folder, 'postgres'), settings: { fsync: 'off' } })
    stops.push(() => postgres.stop())
    const effects = await startEffects(createRandom(seed + 1))
    stops.push(effects.stop)
    const conductors = await startConductors(postgres.dsn(), folder, effects.url)
    stops.push(() => conductors.stop())
    const schedules = await createSchedules(conductors, effects.url)
    const load = startLoad(conductors, effects.url, createRandom(seed + 2))
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
    const left = await settled(postgres.dsn(), mend, began)
    const settledMs = performance.now() - began
    const verdict = await check(postgres.dsn(), effects.seen, load.told)
    const problems = [...verdict.problems, ...(left > 0 ? [`${left} workflows are not over`] : [])]
    const rows = Object.entries({
      'seed, minutes': `${seed}, ${minutes}`,
      faults: String(faults),
      'workflows begun by clients': String(load.begun),
      ...verdict.figures,
      'all over after the last fault': `${(settledMs / 1_000).toFixed(1)} s`,
      'broken promises': String(problems.length),
    })
    process.stdout.write(`${draw([['', ''], ...rows])}\n`)
    for (const problem of problems.slice(0, 50)) process.stdout.write(`BROKEN ${problem}\n`)
    await stop()
    if (problems.length > 0)
      say(`FAILED. Again: npm run chaos:workflows -- --seed ${seed} --minutes ${minutes}\nLogs: ${folder}`)
    else await rm(folder, { recursive: true, force: true })
    return problems.length === 0
  } finally {
    await stop()
  }
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

await runCommand(usage, readOptions, async (options) => {
  if (!(await main(options))) process.exitCode = 1
})
