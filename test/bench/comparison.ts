import type { Sample } from './measure.ts'
import { titles, type TargetResult } from './report.ts'
import { median } from './statistics.ts'
import { draw, shown } from './table.ts'
import type { Form } from './targets.ts'

/** A figure of this checkout divided by the other one's, for each round, so that a change of the machine's speed between rounds cancels out. */
export interface Ratio {
  readonly median: number
  readonly least: number
  readonly most: number
}

interface Figure {
  readonly label: string
  readonly digits: number
  /** One value for each round that measured it. */
  readonly rounds: (result: TargetResult) => readonly number[]
}

const forms: readonly Form[] = ['single', 'four']
/** The proxy does the same in every round: a larger spread of its figures means that the machine was busy with something else. */
const quietSpread = 0.2

const cell = (name: string, digits: number, label: string, of: (sample: Sample) => number | undefined): Figure => ({
  label: `${name}: ${label}`,
  digits,
  rounds: ({ rounds }) => (rounds[name] ?? []).map(of).filter((value) => value !== undefined),
})
const rate = (name: string): Figure => cell(name, 0, 'chats/s', (sample) => sample.chatsPerSecond)
const firstDelta = (name: string): Figure => cell(name, 2, 'first delta p50 ms', (sample) => sample.firstP50)
const cpu = (name: string): Figure =>
  cell(name, 2, 'CPU ms per chat, Node and PostgreSQL', ({ cpuMs, postgresCpuMs }) =>
    cpuMs === undefined ? undefined : cpuMs + (postgresCpuMs ?? 0),
  )
const long: Figure = {
  label: 'one 20,000-delta stream: deltas/s',
  digits: 0,
  rounds: ({ longRounds }) => longRounds,
}

const of = (results: readonly TargetResult[], name: TargetResult['target']): TargetResult | undefined =>
  results.find(({ target }) => target === name)

/** The largest less the smallest, over the median. */
const spread = (values: readonly number[]): number => (Math.max(...values) - Math.min(...values)) / median(values)

const percent = (share: number): string => `${Math.round(share * 100)} %`

/** Undefined when either was not measured. */
export function ratio(results: readonly TargetResult[], form: Form, figure: Figure): Ratio | undefined {
  const here = of(results, form)
  const there = of(results, `${form} there`)
  if (!here || !there) return undefined
  const others = figure.rounds(there)
  const ratios = figure
    .rounds(here)
    .map((value, round) => value / (others[round] ?? Number.NaN))
    .filter(Number.isFinite)
  if (ratios.length === 0) return undefined
  return { median: median(ratios), least: Math.min(...ratios), most: Math.max(...ratios) }
}

/** Here, there, and here over there, for each form; with each figure its ratio to the proxy and its spread over the rounds. */
export function againstTable(results: readonly TargetResult[], cells: readonly string[]): string {
  const measured = forms.filter((form) => of(results, form) && of(results, `${form} there`))
  const proxy = of(results, 'proxy')
  const figures = [...cells.flatMap((name) => [rate(name), firstDelta(name), cpu(name)]), long]
  const text = (figure: Figure, result: TargetResult | undefined): string => {
    const values = result ? figure.rounds(result) : []
    if (values.length === 0) return '-'
    const base = proxy ? median(figure.rounds(proxy)) : Number.NaN
    const over = result === proxy || !(base > 0) ? [] : [`${(median(values) / base).toPrecision(2)}x`]
    return `${shown(median(values), figure.digits)} (${[...over, percent(spread(values))].join(', ')})`
  }
  const between = (found: Ratio | undefined): string =>
    found ? `${found.median.toFixed(2)}x (${found.least.toFixed(2)}-${found.most.toFixed(2)})` : '-'
  const head = [
    '',
    ...(proxy ? [titles.proxy] : []),
    ...measured.flatMap((form) => [titles[form], 'there', 'here/there']),
  ]
  const body = figures
    .filter((figure) => results.some((result) => figure.rounds(result).length > 0))
    .map((figure) => [
      figure.label,
      ...(proxy ? [text(figure, proxy)] : []),
      ...measured.flatMap((form) => [
        text(figure, of(results, form)),
        text(figure, of(results, `${form} there`)),
        between(ratio(results, form, figure)),
      ]),
    ])
  return draw([head, ...body])
}

export interface Bar {
  readonly bar: string
  /** Undefined when this run did not measure it. */
  readonly measured: Ratio | undefined
  readonly met: boolean
}

const bars: readonly { figure: Figure; least?: number; most?: number }[] = [
  { figure: rate('stream x64'), least: 2.2 },
  { figure: cpu('stream x64'), most: 0.5 },
  { figure: firstDelta('stream x1'), most: 0.5 },
  { figure: long, least: 2 },
]

/** By how much this checkout shall be better, for each bar in each form. The median of the rounds decides. */
export function barsOf(results: readonly TargetResult[]): Bar[] {
  return bars.flatMap(({ figure, least, most }) =>
    forms.map((form) => {
      const measured = ratio(results, form, figure)
      const bound = least === undefined ? `at most ${most}x` : `at least ${least}x`
      return {
        bar: `${titles[form]}, ${figure.label} ${bound}`,
        measured,
        met:
          measured !== undefined &&
          (least === undefined || measured.median >= least) &&
          (most === undefined || measured.median <= most),
      }
    }),
  )
}

/** A sentence that says why the figures of this run are doubtful; undefined when they are not. */
export function unquiet(results: readonly TargetResult[], cells: readonly string[]): string | undefined {
  const proxy = of(results, 'proxy')
  if (!proxy) return 'Without the proxy this run cannot say whether the machine was quiet.'
  const measured = [...cells.map(rate), long]
    .map((figure) => ({ label: figure.label, values: figure.rounds(proxy) }))
    .filter(({ values }) => values.length > 0)
  if (measured.some(({ values }) => values.length === 1)) return 'One round cannot say whether the machine was quiet.'
  const loud = measured.filter(({ values }) => spread(values) > quietSpread)
  if (loud.length === 0) return undefined
  const which = loud.map(({ label, values }) => `${label} ${percent(spread(values))}`).join('; ')
  return `The machine was NOT quiet, the proxy itself differed between rounds by more than ${percent(quietSpread)}: ${which}.`
}
