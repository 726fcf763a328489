// `npm run bench:load`: runs that arrive by the clock, thousands of open streams, and what a second gateway and conductor
// bring. One process per role on real PostgreSQL. See docs/performance.md for what the figures mean.
import type { ChildProcess } from 'node:child_process'
import { cpus } from 'node:os'
import { runCommand, say, withProcesses } from '../command.ts'
import { createLoad, type RunJob } from '../load-client.ts'
import { measureCell } from '../measure.ts'
import { type Processes, usageOf } from '../processes.ts'
import { startRedis } from '../redis.ts'
import { medianOf } from '../statistics.ts'
import { startModel } from '../targets.ts'
import { countCores } from './cpu.ts'
import { type Options, readOptions, usage } from './options.ts'
import { aims, type ChatsSample, type Entry, type Results, tables } from './report.ts'
import { measureRuns, type RunsSample } from './runs.ts'
import { filesNeeded, measureStreams, modelOf } from './streams.ts'
import { type LoadTarget, startPairs, startProxy, type Watched } from './targets.ts'

const shortChats = { name: 'stream x64', clients: 64, model: 'burst-20' } as const
const warmUpMs = 4_000

/** How many files this process and its children may open. */
function openFilesLimit(): number {
  const { userLimits } = process.report.getReport() as { userLimits?: { open_files?: { soft: number | 'unlimited' } } }
  const soft = userLimits?.open_files?.soft ?? 'unlimited'
  return soft === 'unlimited' ? Infinity : Number(soft)
}

interface Stand {
  readonly run: RunJob
  readonly proxy: LoadTarget
  readonly insert: LoadTarget
  readonly services: readonly LoadTarget[]
  readonly others: readonly Watched[]
  readonly streams: readonly number[]
}

async function start(processes: Processes, options: Options): Promise<Stand> {
  const limit = openFilesLimit()
  const streams = options.streams.filter((count) => {
    const fits = filesNeeded(count) <= limit
    if (!fits)
      say(`${count} streams are NOT measured: they need ${filesNeeded(count)} open files, the limit is ${limit}`)
    return fits
  })
  const client: ChildProcess = processes.fork(new URL('../client.ts', import.meta.url).pathname)
  const model = await startModel(processes, 0)
  const redisUrl = await startRedis(processes)
  if (redisUrl === undefined) say('no redis-server on the PATH: every gateway and conductor counts for itself')
  const measured = options.cells.includes('streams') ? streams.map((count) => modelOf(count, options)) : []
  const context = { processes, modelUrl: model.url, redisUrl, models: ['burst-20', ...measured] as const }
  say('starting one gateway and conductor, and two of each')
  const one = await startPairs(context, 1)
  const two = await startPairs(context, 2)
  const proxy = await startProxy(processes, model.url)
  const server = new URL('../insert-server.ts', import.meta.url).pathname
  const bare = await processes.node([server, one.cluster.dsn])
  return {
    run: createLoad(client),
    proxy,
    insert: {
      ...proxy,
      name: 'insert',
      runs: { urls: [String(bare.line['url'])], profile: 'bench', key: 'none' },
      processes: [{ name: 'bare server', child: bare.child }, ...one.processes.filter((p) => p.name === 'postgres')],
    },
    services: [one, two],
    others: [
      { name: 'load client', child: client },
      { name: 'stand-in model', child: model.child },
    ],
    streams,
  }
}

/** Measures each target in every round, each round beginning with another one, so that none always follows the same. */
async function inRounds<T extends object>(
  targets: readonly LoadTarget[],
  rounds: number,
  measure: (target: LoadTarget) => Promise<T>,
): Promise<{ target: string; samples: T[] }[]> {
  const kept = targets.map(({ name }) => ({ target: name, samples: [] as T[] }))
  for (let round = 0; round < rounds; round++) {
    say(`  round ${round + 1} of ${rounds}`)
    for (let i = 0; i < targets.length; i++) {
      const at = (i + round) % targets.length
      const target = targets[at]
      if (target) kept[at]?.samples.push(await measure(target))
    }
  }
  return kept
}

const coresOf = (samples: readonly { cores: Readonly<Record<string, number>> }[]): Readonly<Record<string, number>> =>
  medianOf(samples.map(({ cores }) => cores))

async function measure(stand: Stand, options: Options): Promise<Results> {
  const { run, proxy, insert, services, others } = stand
  const results = {
    rate: options.rate,
    runs: [] as Entry<RunsSample>[],
    streams: [] as Results['streams'][number][],
    leftOut: options.cells.includes('streams') ? options.streams.filter((count) => !stand.streams.includes(count)) : [],
    chats: [] as Entry<ChatsSample>[],
  }
  if (options.cells.includes('runs')) {
    say(`${options.rate} runs/s`)
    const load = { rate: options.rate, ms: options.runsMs, others }
    const found = await inRounds([insert, ...services], options.rounds, (target) => measureRuns(run, target, load))
    for (const { target, samples } of found) {
      const worst = Math.max(...samples.map((sample) => sample.worst))
      const sent = samples.reduce((sum, sample) => sum + sample.sent, 0)
      results.runs.push({ target, sample: { ...medianOf(samples), worst, sent, cores: coresOf(samples) } })
    }
  }
  // Streams are measured before the chats, which would grow the resident sets and so hide what streams need. A few chats run
  // all the same, because what a process allocates for its first thousand requests does not belong to a stream.
  if (options.cells.includes('streams')) {
    say('first some chats, so that no process is cold')
    for (const target of [proxy, ...services]) await measureCell(run, target, shortChats, warmUpMs, 0)
    for (const count of stand.streams) {
      for (const target of [proxy, ...services]) {
        say(`${count} streams, ${target.name}`)
        results.streams.push({
          target: target.name,
          sample: await measureStreams(run, target, count, options, others),
        })
      }
    }
  }
  if (options.cells.includes('chats')) {
    say('short chats x64')
    const found = await inRounds([proxy, ...services], options.rounds, async (target) => {
      const count = countCores([...target.processes, ...others])
      const sample = await measureCell(run, target, shortChats, 1_000, options.chatsMs)
      return { ...sample, cores: count() }
    })
    for (const { target, samples } of found) {
      results.chats.push({ target, sample: { ...medianOf(samples), cores: coresOf(samples) } })
    }
  }
  return results
}

function print(results: Results, options: Options, seconds: number): void {
  const reached = aims(results)
  const errors = [...results.runs, ...results.streams, ...results.chats].reduce((sum, e) => sum + e.sample.errors, 0)
  const data = { seconds, cpus: cpus().length, node: process.version, results, aims: reached, errors }
  if (!options.json) {
    process.stdout.write(`\n${tables(results)}`)
    for (const { aim, measured, met } of reached) {
      process.stdout.write(
        `${met ? 'met    ' : 'NOT MET'} ${aim}: ${measured === undefined ? 'not measured' : Math.round(measured * 100) / 100}\n`,
      )
    }
    process.stdout.write(
      `\nIn brackets: ratio to the first column. ${cpus().length} CPUs for everything, load client, stand-in model and ` +
        'PostgreSQL included: a second gateway and conductor can bring more only where there are cores for them.\n',
    )
    if (!usageOf([process.pid])) process.stdout.write('No /proc on this system: CPU is not measured.\n')
    if (errors > 0) process.stdout.write(`\n!!! ${errors} REQUESTS FAILED: this run is NOT a result. !!!\n`)
  }
  process.stdout.write(`${JSON.stringify(data)}\n`)
  if (errors > 0) process.exitCode = 1
}

await runCommand(usage, readOptions, (options) =>
  withProcesses(async (processes) => {
    const began = performance.now()
    const stand = await start(processes, options)
    const results = await measure(stand, options)
    print(results, options, Math.round((performance.now() - began) / 1000))
  }),
)
