import type { SlowStreams, Sample } from './measure.ts'
import { draw } from './table.ts'
import type { TargetName } from './targets.ts'

export interface TargetResult {
  readonly target: TargetName
  readonly bootMs: number
  readonly idleRssMb?: number
  readonly idlePostgresMb?: number
  /** Medians over the rounds, by the cell's name, and the rounds themselves. */
  readonly cells: Readonly<Record<string, Sample>>
  readonly rounds: Readonly<Record<string, readonly Sample[]>>
  readonly longDeltasPerSecond?: number
  readonly longRounds: readonly number[]
  readonly slow?: SlowStreams
  /** First delta of a chat with the builtin provider: the very first of the process, and the median of later ones. */
  readonly builtinFirstMs?: { readonly cold: number; readonly warm: number }
  readonly errors: number
}

interface Row {
  readonly label: string
  readonly digits: number
  readonly value: (result: TargetResult, all: readonly TargetResult[]) => number | undefined
  /** True for a figure that is not divided by the proxy's. */
  readonly plain?: boolean
}

const cellRows = (cell: string): Row[] => [
  { label: `${cell}: chats/s`, digits: 0, value: (r) => r.cells[cell]?.chatsPerSecond },
  { label: `${cell}: first delta p50 ms`, digits: 2, value: (r) => r.cells[cell]?.firstP50 },
  { label: `${cell}: first delta p99 ms`, digits: 2, value: (r) => r.cells[cell]?.firstP99 },
  { label: `${cell}: CPU ms per chat`, digits: 2, value: (r) => r.cells[cell]?.cpuMs },
  {
    label: `${cell}: PostgreSQL CPU ms per chat`,
    digits: 2,
    value: (r) => r.cells[cell]?.postgresCpuMs || undefined,
    plain: true,
  },
]

/** A target's whole answer at one client, less the bare model server's for the same request. */
const overhead =
  (key: 'totalP50' | 'totalP99') =>
  (result: TargetResult, all: readonly TargetResult[]): number | undefined => {
    const own = result.cells['sync x1']?.[key]
    const bare = all.find((other) => other.target === 'model')?.cells['sync x1']?.[key]
    return own === undefined || bare === undefined || result.target === 'model' ? undefined : own - bare
  }

export const rowsOf = (cells: readonly string[]): Row[] => [
  ...cells.filter((cell) => cell !== 'sync x1').flatMap(cellRows),
  { label: 'sync x1: whole answer p50 ms', digits: 2, value: (r) => r.cells['sync x1']?.totalP50 },
  { label: 'sync x1: overhead p50 ms', digits: 2, value: overhead('totalP50') },
  { label: 'sync x1: overhead p99 ms', digits: 2, value: overhead('totalP99') },
  { label: 'one 20,000-delta stream: deltas/s', digits: 0, value: (r) => r.longDeltasPerSecond },
  { label: 'slow streams open', digits: 0, value: (r) => r.slow?.streams, plain: true },
  { label: 'slow streams: memory KB each', digits: 1, value: (r) => r.slow?.kbPerStream },
  { label: 'slow streams: lateness p50 ms', digits: 1, value: (r) => r.slow?.lateP50 },
  { label: 'slow streams: lateness p99 ms', digits: 1, value: (r) => r.slow?.lateP99 },
  { label: 'slow streams: lateness p99 ms while opening', digits: 1, value: (r) => r.slow?.openingLateP99 },
  { label: 'builtin chat: first delta ms, cold', digits: 1, value: (r) => r.builtinFirstMs?.cold, plain: true },
  { label: 'builtin chat: first delta ms, warm', digits: 1, value: (r) => r.builtinFirstMs?.warm, plain: true },
  { label: 'boot to ready ms', digits: 0, value: (r) => r.bootMs },
  { label: 'idle memory MB', digits: 0, value: (r) => r.idleRssMb },
  { label: 'idle memory of PostgreSQL MB', digits: 0, value: (r) => r.idlePostgresMb || undefined, plain: true },
  { label: 'failed chats', digits: 0, value: (r) => r.errors, plain: true },
]

export const titles: Record<TargetName, string> = {
  model: 'bare model',
  proxy: 'two-hop proxy',
  single: 'one process',
  four: 'four processes',
  'single there': 'one process, there',
  'four there': 'four processes, there',
}

/** A Markdown table: each figure, and in brackets its ratio to the two-hop proxy's of the same run. */
export function table(results: readonly TargetResult[], cells: readonly string[]): string {
  const proxy = results.find((result) => result.target === 'proxy')
  const lines = rowsOf(cells).map((row) => {
    const base = proxy && !row.plain ? row.value(proxy, results) : undefined
    const shown = results.map((result) => {
      const value = row.value(result, results)
      if (value === undefined || Number.isNaN(value)) return '-'
      const ratio = base === undefined || base === 0 || result === proxy ? '' : ` (${(value / base).toPrecision(2)}x)`
      return `${value.toLocaleString('en', { minimumFractionDigits: row.digits, maximumFractionDigits: row.digits })}${ratio}`
    })
    return { label: row.label, shown }
  })
  const used = lines.filter((line) => line.shown.some((text) => text !== '-'))
  const head = ['', ...results.map((result) => titles[result.target])]
  const body = [head, ...used.map((line) => [line.label, ...line.shown])]
  return draw(body)
}

/** The aims of the first release, each with what was measured; undefined where this run did not measure it. */
export function aims(results: readonly TargetResult[]): { aim: string; measured: number | undefined; met: boolean }[] {
  const single = results.find((result) => result.target === 'single')
  const four = results.find((result) => result.target === 'four')
  const least = (aim: string, measured: number | undefined, bound: number) => ({
    aim,
    measured,
    met: measured !== undefined && measured >= bound,
  })
  const most = (aim: string, measured: number | undefined, bound: number) => ({
    aim,
    measured,
    met: measured !== undefined && measured < bound,
  })
  return [
    least('one process, 64 clients: at least 1,000 chats/s', single?.cells['stream x64']?.chatsPerSecond, 1_000),
    least('four processes, 64 clients: at least 700 chats/s', four?.cells['stream x64']?.chatsPerSecond, 700),
    most('one process, sync overhead p50 under 5 ms', single && overhead('totalP50')(single, results), 5),
    most('four processes, sync overhead p50 under 5 ms', four && overhead('totalP50')(four, results), 5),
    least('one process, one stream: at least 60,000 deltas/s', single?.longDeltasPerSecond, 60_000),
    least('four processes, one stream: at least 60,000 deltas/s', four?.longDeltasPerSecond, 60_000),
    most('one process, ready in under 3,000 ms', single?.bootMs, 3_000),
    most('builtin chat, first delta under 100 ms', single?.builtinFirstMs?.cold, 100),
  ]
}
