// `npm run bench`: measures, in one run and in alternating rounds, the bare model server, a bare two-hop proxy, and the
// whole path in its two forms; with `--against` another checkout's path beside it. See docs/performance.md for what the
// figures mean.
import { spawnSync } from 'node:child_process'
import { cpus } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { againstTable, barsOf, unquiet } from './comparison.ts'
import { runCommand, say, withProcesses } from './command.ts'
import { here } from './cluster.ts'
import { createLoad, type RunJob } from './load-client.ts'
import { measureBuiltin, measureSlow } from './measure.ts'
import { type Options, readOptions, usage } from './options.ts'
import { type Processes, usageOf } from './processes.ts'
import { aims, table, type TargetResult } from './report.ts'
import { measureRounds, warmUp } from './rounds.ts'
import { startFour, startSingle } from './service.ts'
import { median, medianOf } from './statistics.ts'
import { startModel, startProxy, type Target, type TargetName } from './targets.ts'

const idleMs = 2_000

async function startTargets(processes: Processes, options: Options): Promise<Target[]> {
  const model = await startModel(processes, options.slowDeltas)
  const context = { processes, modelUrl: model.url, slowDeltas: options.slowDeltas, profile: options.profile }
  const there = options.against === undefined ? context : { ...context, there: options.against }
  const starts: Record<TargetName, () => Promise<Target>> = {
    model: async () => model,
    proxy: () => startProxy(processes, model.url, options.slowDeltas),
    single: () => startSingle(context),
    'single there': () => startSingle(there),
    four: () => startFour(context),
    'four there': () => startFour(there),
  }
  const targets: Target[] = []
  for (const name of options.targets) {
    say(`starting ${name}`)
    targets.push(await starts[name]())
  }
  return targets
}

async function measure(run: RunJob, targets: readonly Target[], options: Options): Promise<TargetResult[]> {
  await sleep(idleMs)
  const idle = new Map(targets.map((target) => [target, usageOf(target.roots(), target.postgresRoots?.())]))
  const builtin = new Map<Target, Awaited<ReturnType<typeof measureBuiltin>>>()
  for (const target of targets) builtin.set(target, await measureBuiltin(run, target))
  for (const target of targets) {
    say(`warming up ${target.name}`)
    await warmUp(run, target, options)
  }
  const all = await measureRounds(run, targets, options, say)
  const results: TargetResult[] = []
  for (const [target, rounds] of all) {
    const slows = options.slowStreams > 0 && target.name !== 'model'
    if (slows) say(`${target.name}: slow streams`)
    const slow = slows ? await measureSlow(run, target, options.slowStreams, options.slowDeltas) : undefined
    const medians = [...rounds.cells].map(([name, list]) => [name, medianOf(list)] as const)
    const before = idle.get(target)
    const chats = builtin.get(target)
    results.push({
      target: target.name,
      bootMs: target.bootMs,
      ...(before ? { idleRssMb: before.nodeRssMb, idlePostgresMb: before.postgresPssMb } : {}),
      cells: Object.fromEntries(medians),
      rounds: Object.fromEntries(rounds.cells),
      ...(rounds.long.length > 0 ? { longDeltasPerSecond: median(rounds.long) } : {}),
      longRounds: rounds.long,
      ...(slow ? { slow } : {}),
      ...(chats ? { builtinFirstMs: { cold: chats.cold, warm: chats.warm } } : {}),
      errors:
        medians.reduce((sum, [, sample]) => sum + sample.errors, 0) +
        rounds.errors +
        (slow?.errors ?? 0) +
        (chats?.errors ?? 0),
    })
  }
  return results
}

const verdict = (met: boolean): string => (met ? 'met    ' : 'NOT MET')

/** The figures and the aims, or against another checkout the bars. Returns the latter; what was not measured is left out. */
function printFigures(results: readonly TargetResult[], options: Options): readonly object[] {
  const names = options.cells.map((cell) => cell.name)
  if (options.against === undefined) {
    process.stdout.write(`\n${table(results, names)}\n\n`)
    const reached = aims(results).filter((aim) => aim.measured !== undefined)
    for (const { aim, measured, met } of reached) {
      process.stdout.write(`${verdict(met)} ${aim}: ${Math.round((measured ?? 0) * 100) / 100}\n`)
    }
    process.stdout.write('\nIn brackets: ratio to the two-hop proxy.')
    return reached
  }
  process.stdout.write(`\nhere ${commitOf(here)}, there ${commitOf(options.against)}\n\n`)
  process.stdout.write(`${againstTable(results, names)}\n\n`)
  const reached = barsOf(results).filter((bar) => bar.measured !== undefined)
  for (const { bar, measured, met } of reached) {
    process.stdout.write(`${verdict(met)} ${bar}: ${measured?.median.toFixed(2)}x\n`)
  }
  const doubt = unquiet(results, names)
  if (doubt !== undefined) process.stdout.write(`\n${doubt}\n`)
  process.stdout.write(
    `\nMedians of ${options.rounds} rounds. In brackets: ratio to the two-hop proxy, and spread: the largest round less the ` +
      'smallest, over the median. here/there is the median of the ratios of each round, with the least and the most.',
  )
  return reached
}

function print(results: readonly TargetResult[], options: Options, seconds: number): void {
  const reached = printFigures(results, options)
  process.stdout.write(
    ` ${cpus().length} CPUs shared with the load client and the stand-in model server. Other products are not measured here.\n`,
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

/** The commit of a checkout, with a + when its files differ from it. */
function commitOf(folder: string): string {
  const git = (...args: string[]): string =>
    spawnSync('git', ['-C', folder, ...args], { encoding: 'utf8' }).stdout?.trim() ?? ''
  const commit = git('rev-parse', '--short', 'HEAD') || folder
  return git('status', '--porcelain', '--untracked-files=no') === '' ? commit : `${commit}+`
}

await runCommand(usage, readOptions, (options) =>
  withProcesses(async (processes) => {
    const began = performance.now()
    const run = createLoad(processes.fork(new URL('client.ts', import.meta.url).pathname))
    const targets = await startTargets(processes, options)
    const results = await measure(run, targets, options)
    print(results, options, Math.round((performance.now() - began) / 1000))
  }),
)
