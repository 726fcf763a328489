// `npm run chaos:workflows`: three conductors on one PostgreSQL carry on workflows and schedules while they are killed, frozen and cut off
// from it. In the end every workflow has come to its right end, no attempt had its effect twice, and every time of a schedule had one
// outcome. `npm run chaos` has the same in short. See docs/reliability.md.
import { parseArgs } from 'node:util'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { runCommand, say } from '../../bench/command.ts'
import { layOut } from '../report.ts'
import { proveWorkflows, stopAll } from './proof.ts'

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

async function main({ minutes, seed }: Options): Promise<boolean> {
  const folder = await mkdtemp(join(tmpdir(), 'agent-orc-chaos-workflows-'))
  const stops: (() => Promise<unknown>)[] = []
  process.once('SIGINT', () => void stopAll(stops).then(() => process.exit(130)))
  try {
    say(`seed ${seed}, ${minutes} min, logs in ${folder}`)
    const { figures, problems } = await proveWorkflows({ minutes, seed, folder, stops })
    const rows = Object.entries({
      'seed, minutes': `${seed}, ${minutes}`,
      ...figures,
      'broken promises': String(problems.length),
    })
    process.stdout.write(`${layOut(rows, problems)}\n`)
    if (problems.length > 0)
      say(`FAILED. Again: npm run chaos:workflows -- --seed ${seed} --minutes ${minutes}\nLogs: ${folder}`)
    else await rm(folder, { recursive: true, force: true })
    return problems.length === 0
  } finally {
    await stopAll(stops)
  }
}

await runCommand(usage, readOptions, async (options) => {
  if (!(await main(options))) process.exitCode = 1
})
