import type { ListName } from '../schema.ts'
import type { Candidate } from './candidates.ts'

/** The constant of reciprocal rank fusion. The larger it is, the less the first places of a list differ. */
const k = 60
/** The weight of each list. */
const weights: Readonly<Record<ListName, number>> = {
  words: 1,
  names: 0.15,
  times: 0.5,
  similar: 0.3,
  linked: 0.25,
  meaning: 1,
  recent: 0.05,
}
/** The weight of the list `recent` if the question asks how things are now. */
const recentWhenAsked = 0.4
/** A memory that only the second step found has none of the question's words. It counts as covering this share of the question. */
const linkStrength = 0.2
/** The share of the rank in a score; the rest is how much of the question a memory covers. */
const relative = 0.5
/** Deductions for a mined memory, for a superseded memory, and for a memory with confidence 0. */
const loss = { mined: 0.05, superseded: 0.3, unsure: 0.2 } as const

/** A memory with its score and its places in the lists. */
export interface Ranked {
  readonly candidate: Candidate
  /** The score, 0 to 1. */
  readonly score: number
  readonly places: readonly { readonly list: ListName; readonly rank: number }[]
}

export interface Lists {
  readonly candidates: readonly Candidate[]
  /** Cosine similarity by memory; empty without vectors. */
  readonly meaning: ReadonlyMap<number, number>
  /** By memory, the score of the names and words through which it is linked to the best hits. */
  readonly linked: ReadonlyMap<number, number>
  /** The total weight of the question's words. */
  readonly total: number
  /** True if the question asks how things are now. */
  readonly now: boolean
}

/** Merges the lists by reciprocal rank; best first. */
export function rank({ candidates, meaning, linked, total, now }: Lists): Ranked[] {
  const values: Readonly<Record<ListName, (one: Candidate) => number>> = {
    words: ({ words }) => words,
    names: ({ names }) => names,
    times: ({ times }) => times,
    similar: ({ alike }) => alike,
    linked: ({ memory }) => linked.get(memory) ?? 0,
    meaning: ({ memory }) => meaning.get(memory) ?? 0,
    recent: ({ at }) => at,
  }
  const places = new Map<number, { list: ListName; rank: number }[]>()
  const sums = new Map<number, number>()
  for (const [list, valueOf] of Object.entries(values) as [ListName, (one: Candidate) => number][]) {
    const weight = list === 'recent' && now ? recentWhenAsked : weights[list]
    for (const [memory, place] of placesIn(candidates, valueOf)) {
      sums.set(memory, (sums.get(memory) ?? 0) + weight / (k + place))
      places.set(memory, [...(places.get(memory) ?? []), { list, rank: place }])
    }
  }
  const best = Math.max(...sums.values(), Number.MIN_VALUE)
  const bestLink = Math.max(...linked.values(), Number.MIN_VALUE)
  return candidates
    .map((candidate): Ranked => {
      const { memory, covered } = candidate
      const strength = Math.max(
        total > 0 ? Math.min(1, covered / total) : 0,
        meaning.get(memory) ?? 0,
        linkStrength * ((linked.get(memory) ?? 0) / bestLink),
      )
      const score = relative * ((sums.get(memory) ?? 0) / best) + (1 - relative) * strength
      return { candidate, score: round(score * trustOf(candidate)), places: placed(places.get(memory) ?? []) }
    })
    .toSorted((a, b) => b.score - a.score || b.candidate.at - a.candidate.at || b.candidate.memory - a.candidate.memory)
}

/** Recency is named as a reason only for the three newest. */
const placed = (all: readonly { list: ListName; rank: number }[]) =>
  all.filter(({ list, rank: place }) => list !== 'recent' || place <= 3)

/**
 * The places of the memories in one list. Memories with an equal value share the last of their places, because a value that all have distinguishes
 * none.
 */
function placesIn(candidates: readonly Candidate[], valueOf: (one: Candidate) => number): Map<number, number> {
  const sorted = candidates
    .map((one) => ({ memory: one.memory, value: valueOf(one) }))
    .filter(({ value }) => value > 0)
    .toSorted((a, b) => b.value - a.value)
  const places = new Map<number, number>()
  for (let from = 0; from < sorted.length;) {
    let to = from
    while (to < sorted.length && sorted[to]!.value === sorted[from]!.value) to++
    for (let i = from; i < to; i++) places.set(sorted[i]!.memory, to)
    from = to
  }
  return places
}

const trustOf = ({ confidence, curated, superseded }: Candidate): number =>
  (curated ? 1 : 1 - loss.mined) * (superseded ? 1 - loss.superseded : 1) * (1 - loss.unsure * (1 - confidence))
const round = (score: number): number => Math.round(Math.min(1, Math.max(0, score)) * 10_000) / 10_000
