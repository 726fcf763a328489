// `npm run bench:memory`: how well and how fast memories are found. Recall of evidence on conversations that are made here from a
// seed, beside plain tsvector and BM25 in the same run; then searches and writes in a bank of 100,000. See docs/performance.md.
import { runCommand, withProcesses } from '../command.ts'
import type { Processes } from '../processes.ts'
import { draw, shown } from '../table.ts'
import { type Figures, measureRetrieval } from './retrieval.ts'
import { measureScale, type ScaleFigures } from './scale.ts'
import { startService } from './service.ts'

/** Points of recall@5 above plain tsvector, and milliseconds of a search at 100,000 memories. */
const aims = { points: 8, p99: 30 } as const

const usage = 'npm run bench:memory -- [--conversations 6] [--records 100000] [--seed 1]'
interface Options {
  readonly conversations: number
  readonly records: number
  readonly seed: number
}

function readOptions(args: string[]): Options {
  const options: Record<string, number> = { conversations: 6, records: 100_000, seed: 1 }
  for (let i = 0; i < args.length; i += 2) {
    const name = args[i]!.replace(/^--/, '')
    const value = Number(args[i + 1])
    if (!(name in options) || !Number.isSafeInteger(value) || value < 0)
      throw new Error(`${args[i]} takes a whole number, and is one of the options`)
    options[name] = value
  }
  return options as unknown as Options
}

async function bench({ conversations, records, seed }: Options, processes: Processes): Promise<boolean> {
  const service = await startService(processes)
  const figures = await measureRetrieval(service, { conversations, seed })
  showRetrieval(figures)
  const recall = (name: string): number => (100 * figures[name]!.all.at5) / figures[name]!.all.questions
  const points = recall('ours') - recall('plain tsvector')
  const found = points >= aims.points
  process.stdout.write(
    `${found ? 'met    ' : 'NOT MET'} recall@5 at least ${aims.points} points above plain tsvector: ${shown(points, 1)}\n\n`,
  )
  if (records === 0) return found
  const scale = await measureScale(service, records, seed)
  showScale(scale)
  const fast = scale.search.p99 < aims.p99
  process.stdout.write(
    `${fast ? 'met    ' : 'NOT MET'} search p99 under ${aims.p99} ms at ${shown(records, 0)} memories: ${shown(scale.search.p99, 1)} ms\n`,
  )
  process.stdout.write(`${JSON.stringify({ node: process.version, seed, figures, scale })}\n`)
  return found && fast
}

function showRetrieval(figures: Figures): void {
  const rows = Object.entries(figures).flatMap(([name, kinds]) =>
    Object.entries(kinds).map(([kind, { questions, at5, at8, mrr }]) => [
      name,
      kind,
      String(questions),
      shown((100 * at5) / questions, 1),
      shown((100 * at8) / questions, 1),
      shown(mrr / questions, 3),
    ]),
  )
  process.stdout.write(`${draw([['method', 'kind', 'questions', 'recall@5', 'recall@8', 'MRR'], ...rows])}\n`)
}
function showScale({ records, writeRate, search, plain, bare }: ScaleFigures): void {
  const rows = [
    ['search over the API', shown(search.p50, 1), shown(search.p99, 1), `${shown(search.p50 / plain.p50, 2)}x`],
    ['plain tsvector, in the database', shown(plain.p50, 1), shown(plain.p99, 1), ''],
    ['SELECT 1', shown(bare.p50, 1), shown(bare.p99, 1), ''],
  ]
  process.stdout.write(`${draw([[`${shown(records, 0)} memories`, 'p50 ms', 'p99 ms', 'to plain'], ...rows])}\n`)
  process.stdout.write(`writes over the API: ${shown(writeRate, 0)} a second\n`)
}

await runCommand(usage, readOptions, (options) =>
  withProcesses(async (processes) => {
    if (!(await bench(options, processes))) process.exitCode = 1
  }),
)
