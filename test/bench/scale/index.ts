// `npm run bench:scale`: what reading and running costs a tenant with ten thousand, a million and ten million runs. The first
// size is what the others are held to. See docs/performance.md.
import { runCommand, say, withProcesses } from '../command.ts'
import { command, dataDirectory } from '../cluster.ts'
import { median } from '../statistics.ts'
import type { Processes } from '../processes.ts'
import { environment } from '../service.ts'
import { startPostgres } from '#kit/postgres'
import { type Options, readOptions, usage } from './options.ts'
import { type Figures, report } from './report.ts'
import { questions } from './questions.ts'
import { seed, settle, tenant } from './seed.ts'
import { openStore, type Stage } from './store.ts'

async function bench({ runs, samples }: Options, processes: Processes): Promise<boolean> {
  const settings = { fsync: 'off', shared_buffers: '1GB', max_wal_size: '8GB', checkpoint_timeout: '30min' }
  const postgres = await startPostgres({ dataDir: await dataDirectory(processes), settings })
  processes.onStop(() => postgres.stop())
  const env = { ...environment('http://127.0.0.1:9'), POSTGRES_DSN: postgres.dsn() }
  const data = await dataDirectory(processes)
  const { line } = await processes.node([...command('dev'), '--json', '--port', '0', '--data', data], env)
  const { conductorUrl, apiKey } = line as { conductorUrl: string; apiKey: string }
  const stage = await openStore(postgres.dsn())
  processes.onStop(() => stage.close())
  const ask = async (path: string): Promise<Response> => {
    const response = await fetch(conductorUrl + path, { headers: { authorization: `Bearer ${apiKey}` } })
    if (response.status !== 200) throw new Error(`${path} answers ${response.status}: ${await response.text()}`)
    return response
  }
  const figures: Figures[] = []
  // Once for cold code.
  for (const [round, count] of [runs[0]!, ...runs].entries()) {
    say(`seeding ${count} runs`)
    const seeded = await timed(() => seed(postgres.adminDsn('agent_orc'), count))
    say(`in ${Math.round(seeded / 1_000)} s; adding them up`)
    const rolled = await timed(() => stage.rollUp(tenant))
    await settle(postgres.adminDsn('agent_orc'))
    say(`in ${Math.round(rolled / 1_000)} s; measuring`)
    const measured = {
      count,
      prepared: { seeded, rolled },
      ms: { ...(await reads(ask, samples)), ...(await writes(stage, samples)) },
    }
    if (round > 0) figures.push(measured)
  }
  const { text, met } = report(figures)
  process.stdout.write(`${text}\n`)
  return met
}

async function reads(ask: (path: string) => Promise<Response>, samples: number) {
  const found: Record<string, number> = {}
  for (const [name, path] of await questions(ask)) {
    const once = () => timed(async () => void (await (await ask(path)).arrayBuffer()))
    for (let n = 0; n < 3; n++) await once()
    const taken: number[] = []
    for (let n = 0; n < samples; n++) taken.push(await once())
    found[name] = median(taken)
  }
  return found
}

async function writes(stage: Stage, samples: number) {
  const found: Record<string, number> = {}
  for (const [name, work] of Object.entries(stage.works)) {
    await work()
    const taken: number[] = []
    for (let n = 0; n < samples; n++) taken.push(await work())
    found[name] = median(taken)
  }
  return found
}

async function timed(work: () => Promise<void>): Promise<number> {
  const began = performance.now()
  await work()
  return performance.now() - began
}

await runCommand(usage, readOptions, (options) =>
  withProcesses(async (processes) => {
    if (!(await bench(options, processes))) process.exitCode = 1
  }),
)
