import type { ListName } from '../schema.ts'
import type { Candidate } from './candidates.ts'

/** Reciprocal rank: how much the places at the top of a list differ. */
const k = 60
/** How much each list has to say. */
const weights: Readonly<Record<ListName, number>> = {
  words: 1,
  names: 0.15,
  times: 0.5,
  similar: 0.3,
  linked: 0.25,
  meaning: 1,
  recent: 0.05,
}
/** The newest of them, when that is what the question is about. */
const recentWhenAsked = 0.4
/** A second step answers so much of a question as its best link, though it has none of its words. */
const linkStrength = 0.2
/** Of a score: how far in front a memory is, and how much of the question it has. */
const relative = 0.5
/** What a memory loses that nobody vouches for, one that was superseded, and one that is not sure at all. */
const loss = { mined: 0.05, superseded: 0.3, unsure: 0.2 } as const

/** A memory with the places that it has in the lists. */
export interface Ranked {
  readonly candidate: Candidate
  /** 0 to 1. */
  readonly score: number
  readonly places: readonly { readonly list: ListName; readonly rank: number }[]
}

export interface Lists {
  readonly candidates: readonly Candidate[]
  /** Cosine by memory, where there are vectors. */
  readonly meaning: ReadonlyMap<number, number>
  /** What memories share with names of the best hits. */
  readonly linked: ReadonlyMap<number, number>
  /** What the words of the question are worth together. */
  readonly total: number
  /** The question is about how things are now. */
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

/** Recency explains a hit only where it has something else. */
const placed = (all: readonly { list: ListName; rank: number }[]) =>
  all.filter(({ list, rank: place }) => list !== 'recent' || place <= 3)

/** Those that have something of a list, with their places. Equals share the last of theirs: what all have tells nothing. */
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
