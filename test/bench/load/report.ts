import type { Role } from '../cluster.ts'
import type { Sample } from '../measure.ts'
import { draw, shown } from '../table.ts'
import type { Cores } from './cpu.ts'
import type { RunsSample } from './runs.ts'
import type { StreamsSample } from './streams.ts'

export interface ChatsSample extends Sample {
  readonly cores: Cores
}

/** The figures of one target in one cell. */
export interface Entry<T> {
  readonly target: string
  readonly sample: T
}

export interface Results {
  readonly rate: number
  readonly runs: readonly Entry<RunsSample>[]
  readonly streams: readonly Entry<StreamsSample>[]
  /** Counts of streams that were asked for and that this machine cannot open. */
  readonly leftOut: readonly number[]
  readonly chats: readonly Entry<ChatsSample>[]
}

const roles: readonly Role[] = ['gateway', 'conductor', 'runner', 'sidecar']

interface Row<T> {
  readonly label: string
  readonly digits: number
  readonly value: (sample: T) => number | undefined
  /** True for a figure that is not divided by the yardstick's. */
  readonly plain?: boolean
}

/** A Markdown table: each figure, and in brackets its ratio to the first column's, which is the yardstick. */
function table<T extends { readonly cores: Cores; readonly errors: number }>(
  title: string,
  entries: readonly Entry<T>[],
  rows: readonly Row<T>[],
): string {
  if (entries.length === 0) return ''
  const [base] = entries
  const processes = [...new Set(entries.flatMap(({ sample }) => Object.keys(sample.cores)))]
  const all: Row<T>[] = [
    ...rows,
    ...processes.map((name) => ({
      label: `CPU in cores: ${name}`,
      digits: 2,
      value: ({ cores }: T) => cores[name],
      plain: true,
    })),
    { label: 'failed', digits: 0, value: ({ errors }) => errors, plain: true },
  ]
  const lines = all.map(({ label, digits, value, plain }) => {
    const yardstick = base && !plain ? value(base.sample) : undefined
    const cells = entries.map((entry) => {
      const measured = value(entry.sample)
      const text = shown(measured, digits)
      return entry === base || !yardstick || text === '-'
        ? text
        : `${text} (${((measured ?? 0) / yardstick).toPrecision(2)}x)`
    })
    return [label, ...cells]
  })
  const used = lines.filter(([, ...cells]) => cells.some((text) => text !== '-'))
  return `${draw([[title, ...entries.map(({ target }) => target)], ...used])}\n\n`
}

const runsRows: readonly Row<RunsSample>[] = [
  { label: 'POST /api/runs p50 ms', digits: 2, value: (s) => s.p50 },
  { label: 'POST /api/runs p99 ms', digits: 2, value: (s) => s.p99 },
  { label: 'POST /api/runs worst ms', digits: 2, value: (s) => s.worst },
  { label: 'of it the client’s own lateness p99 ms', digits: 2, value: (s) => s.lagP99, plain: true },
  { label: 'runs', digits: 0, value: (s) => s.sent, plain: true },
]

const streamsRows = (entries: readonly Entry<StreamsSample>[]): Row<StreamsSample>[] => {
  const names = [...new Set(entries.flatMap(({ sample }) => Object.keys(sample.memory)))]
  return [
    { label: 'all open after ms', digits: 0, value: (s) => s.openedMs, plain: true },
    { label: 'lateness p50 ms', digits: 1, value: (s) => s.lateP50 },
    { label: 'lateness p99 ms', digits: 1, value: (s) => s.lateP99 },
    { label: 'lateness p99 ms while opening', digits: 1, value: (s) => s.openingLateP99 },
    ...names.flatMap((name): Row<StreamsSample>[] => [
      { label: `${name}: resident KiB per stream`, digits: 1, value: (s) => s.memory[name]?.residentKb, plain: true },
      { label: `${name}: heap KiB per stream`, digits: 1, value: (s) => s.memory[name]?.heapKb, plain: true },
    ]),
  ]
}

const chatsRows: readonly Row<ChatsSample>[] = [
  { label: 'chats/s', digits: 0, value: (s) => s.chatsPerSecond },
  { label: 'first delta p50 ms', digits: 2, value: (s) => s.firstP50 },
  { label: 'first delta p99 ms', digits: 2, value: (s) => s.firstP99 },
  { label: 'whole answer p99 ms', digits: 2, value: (s) => s.totalP99 },
]

export function tables({ rate, runs, streams, chats }: Results): string {
  const counts = [...new Set(streams.map(({ sample }) => sample.streams))]
  return [
    table(`${rate} runs/s`, runs, runsRows),
    ...counts.map((count) => {
      const entries = streams.filter(({ sample }) => sample.streams === count)
      return table(`${count.toLocaleString('en')} streams`, entries, streamsRows(entries))
    }),
    table('short chats x64', chats, chatsRows),
  ].join('')
}

export interface Aim {
  readonly aim: string
  readonly measured: number | undefined
  readonly met: boolean
}

/** The aims of this bench with what was measured; cells that were not requested are left out. */
export function aims({ rate, runs, streams, leftOut, chats }: Results): Aim[] {
  const most = (aim: string, measured: number | undefined, bound: number): Aim => ({
    aim: `${aim} at most ${bound}`,
    measured,
    met: measured !== undefined && measured <= bound,
  })
  const services = <T>(entries: readonly Entry<T>[]): readonly Entry<T>[] =>
    entries.filter(({ target }) => target.includes('pair'))
  const [one, two] = services(chats)
  const scale = one && two && two.sample.chatsPerSecond / one.sample.chatsPerSecond
  return [
    ...services(runs).map(({ target, sample }) => most(`${target}, ${rate} runs/s: p99 ms`, sample.p99, 100)),
    ...services(streams).flatMap(({ target, sample }) => [
      most(`${target}, ${sample.streams} streams: refused or failed`, sample.errors, 0),
      ...latenessAims(target, sample).map(([aim, measured, bound]) => most(aim, measured, bound)),
      ...memoryAims(target, sample).map(([aim, measured, bound]) => most(aim, measured, bound)),
    ]),
    ...leftOut.map((count) => most(`${count} streams: refused or failed`, undefined, 0)),
    ...(scale === undefined
      ? []
      : [{ aim: 'short chats x64: chats/s of two pairs over one pair at least 1', measured: scale, met: scale >= 1 }]),
  ]
}

type Bounded = readonly [aim: string, measured: number | undefined, bound: number]

/** So many streams do not fill a core. More fill two, and then two pairs of processes on two cores only have to carry them. */
const fewStreams = 1_000

const latenessAims = (target: string, { streams, lateP99 }: StreamsSample): Bounded[] =>
  streams > fewStreams && target !== 'one pair'
    ? []
    : [[`${target}, ${streams} streams: lateness p99 ms`, lateP99, streams > fewStreams ? 200 : 50]]

/** Aims for few streams only: with more, memory that waits for a core is counted as well. */
const memoryAims = (target: string, { streams, memory }: StreamsSample): Bounded[] =>
  streams > fewStreams
    ? []
    : roles.map((role) => {
        const grown = memory[role]
        // The larger of the two, because a resident set that had grown before hides growth.
        const kb = grown && Math.max(grown.residentKb, grown.heapKb)
        return [`${target}, ${streams} streams: ${role}, resident KiB per stream`, kb, 64]
      })
