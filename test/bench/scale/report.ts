import { draw, shown } from '../table.ts'

export interface Figures {
  readonly count: number
  /** Milliseconds of the preparations. */
  readonly prepared: { readonly seeded: number; readonly rolled: number }
  readonly ms: Readonly<Record<string, number>>
}

/** Runs that end between two rounds of roll-ups, at twenty a second. */
export const ofRound = 600
/** What shares are made of, by name. */
export const addingUp = `roll-up of ${ofRound} runs`
export const runThrough = 'start and end of a run'

/** How much longer than at the first size anything may take. */
const most = 3

/** A table with a row for what was measured, each later size beside its ratio to the first. */
export function report(figures: readonly Figures[]): { text: string; met: boolean } {
  const [first, ...others] = figures
  const rows = Object.entries(first!.ms).map(([name, ms]) => ({
    name,
    ms,
    later: others.map((figure) => ({ ms: figure.ms[name]!, ratio: figure.ms[name]! / ms })),
  }))
  const missed = rows.filter(({ later }) => later.some(({ ratio }) => ratio > most))
  const table = draw([
    ['ms', `${shown(first!.count, 0)} runs`, ...others.flatMap(({ count }) => [`${shown(count, 0)} runs`, 'ratio'])],
    ...rows.map(({ name, ms, later }) => [
      name,
      shown(ms, 1),
      ...later.flatMap((one) => [shown(one.ms, 1), `${shown(one.ratio, 1)}${one.ratio > most ? ' !' : ''}`]),
    ]),
  ])
  const verdict =
    missed.length === 0
      ? `met: nothing takes more than ${most} times as long`
      : `NOT MET, more than ${most} times as long: ${missed.map(({ name }) => name).join('; ')}`
  const shares = figures.map(({ count, ms }) => {
    const each = ms[addingUp]! / ofRound
    return `${shown(count, 0)} runs: ${shown(1_000 * each, 0)} µs to add one up, ${shown((100 * each) / ms[runThrough]!, 1)} % of its start and end`
  })
  return { text: `${table}\n\n${shares.join('\n')}\n${verdict}\n${JSON.stringify(figures)}`, met: missed.length === 0 }
}
