// `npm run bench`: measures, in one run and in alternating rounds, the bare model server, a bare two-hop proxy, and the
// whole path in its two forms. See docs/performance.md for what the figures mean.
import { cpus } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { createLoad, type RunJob } from './load-client.ts'
import { measureBuiltin, measureCell, measureLong, measureSlow, type Sample } from './measure.ts'
import { type Options, readOptions, usage } from './options.ts'
import { createProcesses, type Processes, usageOf } from './processes.ts'
import { aims, table, type TargetResult } from './report.ts'
import { medianOf } from './statistics.ts'
import { startModel, startProxy, type Target } from './targets.ts'
import { startFour, startSingle } from './service.ts'

const idleMs = 2_000
const say = (text: string): void => {
  process.stderr.write(`${text}\n`)
}

async function startTargets(processes: Processes, options: Options): Promise<Target[]> {
  const model = await startModel(processes, options.slowDeltas)
  const context = { processes, modelUrl: model.url, slowDeltas: options.slowDeltas, profile: options.profile }
  const targets: Target[] = []
  for (const name of options.targets) {
    say(`starting ${name}`)
    if (name === 'model') targets.push(model)
    if (name === 'proxy') targets.push(await startProxy(processes, model.url, options.slowDeltas))
    if (name === 'single') targets.push(await startSingle(context))
    if (name === 'four') targets.push(await startFour(context))
  }
  return targets
}

async function measure(run: RunJob, targets: readonly Target[], options: Options): Promise<TargetResult[]> {
  await sleep(idleMs)
  const idle = new Map(targets.map((target) => [target, usageOf(target.roots(), target.postgresRoots?.())]))
  const builtin = new Map<Target, Awaited<ReturnType<typeof measureBuiltin>>>()
  for (const target of targets) builtin.set(target, await measureBuiltin(run, target))
  // Every target runs once unmeasured, or the first cell of the first round would measure the compiler.
  const [first] = options.cells
  for (const target of targets) if (first) await measureCell(run, target, { ...first, clients: 8 }, options.warmMs, 0)
  const samples = new Map(targets.map((target) => [target, new Map<string, Sample[]>()]))
  for (let round = 0; round < options.rounds; round++) {
    say(`round ${round + 1} of ${options.rounds}`)
    for (const cell of options.cells) {
      // Every round begins with another target, so that none always follows the same one.
      for (let i = 0; i < targets.length; i++) {
        const target = targets[(i + round) % targets.length]
        if (!target) continue
        const sample = await measureCell(run, target, cell, options.warmMs, options.ms)
        const kept = samples.get(target)
        kept?.set(cell.name, [...(kept.get(cell.name) ?? []), sample])
      }
    }
  }
  const results: TargetResult[] = []
  for (const target of targets) {
    say(`${target.name}: long and slow streams`)
    const long = options.longTimes > 0 ? await measureLong(run, target, options.longTimes) : undefined
    const slow =
      options.slowStreams > 0 && target.name !== 'model'
        ? await measureSlow(run, target, options.slowStreams, options.slowDeltas)
        : undefined
    const measured = [...(samples.get(target) ?? [])].map(([name, list]) => [name, medianOf(list)] as const)
    const before = idle.get(target)
    const chats = builtin.get(target)
    results.push({
      target: target.name,
      bootMs: target.bootMs,
      ...(before ? { idleRssMb: before.nodeRssMb, idlePostgresMb: before.postgresPssMb } : {}),
      cells: Object.fromEntries(measured),
      ...(long ? { longDeltasPerSecond: long.perSecond } : {}),
      ...(slow ? { slow } : {}),
      ...(chats ? { builtinFirstMs: { cold: chats.cold, warm: chats.warm } } : {}),
      errors:
        measured.reduce((sum, [, sample]) => sum + sample.errors, 0) +
        (long?.errors ?? 0) +
        (slow?.errors ?? 0) +
        (chats?.errors ?? 0),
    })
  }
  return results
}

function print(results: readonly TargetResult[], options: Options, seconds: number): void {
  const names = options.cells.map((cell) => cell.name)
  process.stdout.write(`\n${table(results, names)}\n\n`)
  const reached = aims(results).filter((aim) => aim.measured !== undefined)
  for (const { aim, measured, met } of reached) {
    process.stdout.write(`${met ? 'met    ' : 'NOT MET'} ${aim}: ${Math.round((measured ?? 0) * 100) / 100}\n`)
  }
  process.stdout.write(
    `\nIn brackets: ratio to the two-hop proxy. ${cpus().length} CPUs shared with the load client and the stand-in model server. ` +
      'Other products are not measured here.\n',
  )
  if (!usageOf([process.pid])) process.stdout.write('No /proc on this system: CPU and memory are not measured.\n')
  if (options.profile) process.stdout.write('PROFILED: these figures are slowed by the profiler and are no result.\n')
  const errors = results.reduce((sum, result) => sum + result.errors, 0)
  if (errors > 0) process.stdout.write(`\n!!! ${errors} CHATS FAILED: this run is NOT a result. !!!\n`)
  process.stdout.write(
    `${JSON.stringify({ seconds, cpus: cpus().length, node: process.version, results, aims: reached })}\n`,
  )
  if (errors > 0) process.exitCode = 1
}

async function main(options: Options): Promise<void> {
  const processes = createProcesses()
  let interrupted = false
  const interrupt = (): void => {
    interrupted = true
    say('stopping')
    void processes.stop().then(() => process.exit(130))
  }
  process.once('SIGINT', interrupt)
  process.once('SIGTERM', interrupt)
  const began = performance.now()
  try {
    const run = createLoad(processes.fork(new URL('client.ts', import.meta.url).pathname))
    const targets = await startTargets(processes, options)
    const results = await measure(run, targets, options)
    print(results, options, Math.round((performance.now() - began) / 1000))
  } catch (error) {
    // What fails while everything is being stopped is not worth a word.
    if (!interrupted) throw error
  } finally {
    await processes.stop()
  }
}

let options: Options | undefined
try {
  options = readOptions(process.argv.slice(2))
} catch (error) {
  say(`${error instanceof Error ? error.message : String(error)}\n${usage}`)
  process.exitCode = 2
}
if (options) await main(options)
