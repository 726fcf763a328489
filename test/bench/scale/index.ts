// `npm run bench:scale`: what reading and running costs a tenant with ten thousand, a million and ten million runs. The first
// size is what the others are held to. See docs/performance.md.
import { runCommand, say, withProcesses } from '../command.ts'
import { median, timed } from '../statistics.ts'
import type { Processes } from '../processes.ts'
import { type Options, readOptions, usage } from './options.ts'
import { report } from './report.ts'
import { openSite, type Site } from './site.ts'

async function bench({ runs, samples }: Options, processes: Processes): Promise<boolean> {
  const sites: Site[] = []
  // The largest takes longest, and the newest runs of the others would be old by then.
  for (const count of runs.toSorted((a, b) => b - a)) sites.unshift(await openSite(count, processes))
  const asked = runs.map((count) => sites.find((site) => site.count === count)!)
  say('measuring')
  // Once for cold code.
  await measure(asked, 5)
  const ms = await measure(asked, samples)
  const { text, met } = report(asked.map(({ count, prepared }, i) => ({ count, prepared, ms: ms[i]! })))
  process.stdout.write(`${text}\n`)
  return met
}

/** Milliseconds of everything by name, for each site. */
async function measure(sites: readonly Site[], samples: number): Promise<Record<string, number>[]> {
  const found = sites.map((): Record<string, number> => ({}))
  const take = async (name: string, works: readonly (() => Promise<number>)[], warm: number) => {
    for (let n = 0; n < warm; n++) for (const work of works) await work()
    const taken = works.map((): number[] => [])
    // In turns, because a machine that others use, too, may be half as fast a minute later.
    for (let n = 0; n < samples; n++) for (const [i, work] of works.entries()) taken[i]!.push(await work())
    for (const [i, one] of taken.entries()) found[i]![name] = median(one)
  }
  for (const [i, [name]] of sites[0]!.questions.entries())
    await take(
      name,
      sites.map((site) => () => timed(() => site.ask(site.questions[i]!))),
      3,
    )
  for (const name of Object.keys(sites[0]!.works))
    await take(
      name,
      sites.map((site) => site.works[name]!),
      1,
    )
  return found
}

await runCommand(usage, readOptions, (options) =>
  withProcesses(async (processes) => {
    if (!(await bench(options, processes))) process.exitCode = 1
  }),
)
