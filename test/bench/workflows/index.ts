// `npm run bench:workflows`: how long workflows take, and how many nodes a second there are, beside plain jobs of pg-boss and DBOS, each on
// a PostgreSQL of its own in the same run. A node does nothing: what is measured is the engine. See docs/performance.md.
import { parseArgs } from 'node:util'
import { runCommand, say, withProcesses } from '../command.ts'
import type { Processes } from '../processes.ts'
import { quantile } from '../statistics.ts'
import { draw, shown } from '../table.ts'
import { type Engine, nodesOf, type Shape } from './engine.ts'
import { startOurs } from './ours.ts'
import { startBoss, startDbos } from './peers.ts'

const shapes: readonly Shape[] = [
  { name: 'one node', chain: 1, wide: 0, deep: 1, single: 200, together: 500 },
  { name: 'chain of 10', chain: 10, wide: 0, deep: 1, single: 40, together: 200 },
  { name: '100 wide', chain: 1, wide: 100, deep: 1, single: 20, together: 20 },
]

/** Times of plain pg-boss jobs, and milliseconds of one node. */
const aims = { toBoss: 2, oneNodeMs: 30 } as const

const usage = `npm run bench:workflows -- [--scale 1]: so many times as many workflows
npm run bench:workflows -- [--nodes 10000] [--wide 1000]: one large graph each, and one a tenth as large, beside as many plain jobs`
interface Options {
  readonly scale: number
  /** Large graphs, instead of everything else. */
  readonly large: readonly Shape[]
}
function readOptions(args: string[]): Options {
  const string = { type: 'string' } as const
  const { values } = parseArgs({ args, options: { scale: string, nodes: string, wide: string } })
  const read = (name: 'scale' | 'nodes' | 'wide'): number | undefined => {
    const value = values[name]
    if (value !== undefined && !(Number(value) > 0)) throw new Error(`--${name} takes a number`)
    return value === undefined ? undefined : Number(value)
  }
  const { scale = 1, nodes, wide } = { scale: read('scale'), nodes: read('nodes'), wide: read('wide') }
  return { scale, large: [...(nodes ? sizes(nodes).map(deepGraph) : []), ...(wide ? sizes(wide).map(wideGraph) : [])] }
}

interface Figures {
  readonly engine: string
  readonly shape: string
  readonly p50: number
  readonly p99: number
  readonly nodesPerSecond: number
}

async function measure(engine: Engine, shape: Shape, scale: number): Promise<Figures> {
  const times = (count: number): number => Math.max(1, Math.round(count * scale))
  await engine.run(shape, Math.min(10, times(shape.single)))
  const latencies: number[] = []
  for (let i = 0; i < times(shape.single); i++) latencies.push(...(await engine.run(shape, 1)).each)
  const count = times(shape.together)
  const { all } = await engine.run(shape, count)
  return {
    engine: engine.name,
    shape: shape.name,
    p50: quantile(latencies, 0.5),
    p99: quantile(latencies, 0.99),
    nodesPerSecond: (count * nodesOf(shape) * 1_000) / all,
  }
}

async function bench(processes: Processes, scale: number): Promise<boolean> {
  const figures: Figures[] = []
  for (const start of [startOurs, startBoss, startDbos]) {
    const engine = await start(processes)
    for (const shape of shapes) {
      say(`${engine.name}, ${shape.name}`)
      figures.push(await measure(engine, shape, scale))
    }
    await engine.stop()
  }
  const boss = (one: Figures): Figures =>
    figures.find(({ engine, shape }) => engine === 'pg-boss' && shape === one.shape)!
  const rows = figures.map((one) => [
    one.shape,
    one.engine,
    shown(one.p50, 1),
    shown(one.p99, 1),
    shown(one.nodesPerSecond, 0),
    `${shown(boss(one).nodesPerSecond / one.nodesPerSecond, 2)}x`,
  ])
  const head = ['workflow', 'engine', 'p50 ms', 'p99 ms', 'nodes a second', 'time of pg-boss']
  process.stdout.write(`${draw([head, ...rows.toSorted(([a = ''], [b = '']) => order(a) - order(b))])}\n\n`)
  const ours = figures.filter(({ engine }) => engine === 'agent-orc')
  const verdicts = ours.map((one) => {
    const times = boss(one).nodesPerSecond / one.nodesPerSecond
    return { met: times <= aims.toBoss, text: `${one.shape} within ${aims.toBoss}x of pg-boss: ${shown(times, 2)}x` }
  })
  const { p50 } = ours[0]!
  verdicts.push({ met: p50 < aims.oneNodeMs, text: `one node under ${aims.oneNodeMs} ms: ${shown(p50, 1)} ms` })
  for (const { met, text } of verdicts) process.stdout.write(`${met ? 'met    ' : 'NOT MET'} ${text}\n`)
  process.stdout.write(`${JSON.stringify({ node: process.version, scale, figures })}\n`)
  return verdicts.every(({ met }) => met)
}

/** What a node costs must not grow with its graph: each size is held against a tenth of it. */
const sizes = (most: number): number[] => [Math.max(1, Math.round(most / 10)), Math.round(most)]
const once = { single: 1, together: 1 } as const
/** A hundred chains beside one another. */
function deepGraph(nodes: number): Shape {
  const wide = Math.min(100, nodes)
  const deep = Math.round(nodes / wide)
  return { name: `${wide * deep} nodes`, chain: 0, wide, deep, ...once }
}
const wideGraph = (wide: number): Shape => ({ name: `${wide} wide`, chain: 1, wide, deep: 1, ...once })

async function benchLarge(processes: Processes, large: readonly Shape[]): Promise<void> {
  const perNode = new Map<string, number>()
  const nameOf = (engine: string, shape: Shape): string => `${engine} ${shape.name}`
  for (const start of [startOurs, startBoss]) {
    const engine = await start(processes)
    // What is compiled and planned once is no cost of a graph.
    await engine.run({ ...shapes[1]!, ...once }, 20)
    for (const shape of large) {
      say(`${engine.name}, ${shape.name}`)
      perNode.set(nameOf(engine.name, shape), (await engine.run(shape, 1)).all / nodesOf(shape))
    }
    await engine.stop()
  }
  const rows = large.map((shape) => {
    const ours = perNode.get(nameOf('agent-orc', shape))!
    const boss = perNode.get(nameOf('pg-boss', shape))!
    return [shape.name, shown(ours * nodesOf(shape), 0), shown(ours, 2), shown(boss, 2), `${shown(ours / boss, 2)}x`]
  })
  const head = ['graph', 'ms', 'ms a node', 'ms a plain job', 'time of pg-boss']
  process.stdout.write(`${draw([head, ...rows])}\n`)
}

const order = (shape: string): number => shapes.findIndex(({ name }) => name === shape)

await runCommand(usage, readOptions, ({ scale, large }) =>
  withProcesses(async (processes) => {
    if (large.length > 0) return benchLarge(processes, large)
    if (!(await bench(processes, scale))) process.exitCode = 1
  }),
)
