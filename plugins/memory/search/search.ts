import type { Database } from '#contracts/database'
import type { TenantLimits } from '#contracts/limits'
import { byIndex, columns, happened, isOf, type MemoryRow, toMemory } from '../bank/rows.ts'
import type { Hit, ListName, Memory, Why } from '../schema.ts'
import { asksForNow, asksForPast } from '../text/dates.ts'
import { longestWord, type StemCache } from '../text/stems.ts'
import { askedTerms, type AskedWord } from '../text/terms.ts'
import { tokensOf, wordsOf } from '../text/words.ts'
import {
  type BankFigures,
  type Candidate,
  Candidates,
  type Filter,
  idfOf,
  turnsOf,
  weigh,
  type Weighed,
} from './candidates.ts'
import type { ExtensionSet } from './extensions.ts'
import type { VectorList } from './vectors.ts'

/** The best hits whose names start the second step, and the most names that the second step uses. */
const leading = 3
const mostLinks = 6
/** The most memories that the second step adds. */
const mostLinked = 20
/** The most words of a question that are corrected, and the fewest characters of such a word. */
const mostCorrected = 4
const shortestCorrected = 4

export interface Question extends Omit<Filter, 'superseded'> {
  readonly q: string
  readonly limit: number
  readonly minScore: number
  readonly maxTokens?: number | undefined
  /** The time that the question is asked at. */
  readonly now: Date
  readonly includeSuperseded?: boolean | undefined
}

interface SearchParts {
  readonly database: Database
  readonly stems: StemCache
  readonly extensions: ExtensionSet
  /** Undefined without an embedding provider. */
  readonly vectors: VectorList | undefined
  readonly limits: Pick<TenantLimits, 'turn'> | undefined
}

/** Answers questions by memories of a profile. */
export class Search {
  readonly #parts: SearchParts
  readonly #candidates: Candidates

  constructor(parts: SearchParts) {
    this.#parts = parts
    this.#candidates = new Candidates(parts.database)
  }

  async ask(tenantId: string, profile: string, question: Question): Promise<Hit[]> {
    const { q, now, limit, minScore, maxTokens } = question
    const asked = await askedTerms(tenantId, this.#parts.stems, q, now)
    // The question has only stop words: the newest memories are as good an answer as any. No memory is found by a longer word.
    if (asked.length === 0)
      return wordsOf(q).some(({ text }) => text.length > longestWord) ? [] : this.#newest(tenantId, profile, question)
    const known = await this.#candidates.figures(
      tenantId,
      profile,
      [...new Set(asked.flatMap(({ terms }) => terms))],
      question,
    )
    if (!known) return []
    const filter = { ...question, profile, superseded: question.includeSuperseded || asksForPast(q) }
    const ranked = await this.#rank(tenantId, { asked, filter, question, ...known })
    const wanted = ranked.filter(({ score }) => score >= minScore).slice(0, limit)
    return this.#hits(tenantId, asked, wanted, maxTokens)
  }

  async #rank(tenantId: string, { asked, filter, question, bank, records }: Asked): Promise<Ranked[]> {
    const { weighed, total } = weigh(asked, bank, records)
    // A long question over many memories can cost as much as a hundred requests that read one row. It takes as many turns of the rate limit.
    await this.#parts.limits?.turn(tenantId, 'readsPerMinute', turnsOf(bank, weighed, filter, question.limit))
    const corrected = await this.#corrected(tenantId, bank, asked, weighed)
    const [found, near] = await Promise.all([
      this.#candidates.find(tenantId, bank, [...weighed, ...corrected], filter, question.limit),
      this.#parts.vectors?.near(tenantId, bank.bank, question, question.q) ?? [],
    ])
    const meaning = new Map(near.map(({ memory, similarity }) => [memory, similarity]))
    const missing = [...meaning.keys()].filter((memory) => !found.some((one) => one.memory === memory))
    const candidates = [...found, ...(await this.#candidates.of(tenantId, missing, filter))]
    const lists = { candidates, meaning, linked: new Map<number, number>(), total, now: asksForNow(question.q) }
    const first = rank(lists)
    const links = await this.#linked(tenantId, bank, first, { asked, weighed, filter })
    if (links.length === 0) return first
    const added = links.filter(({ memory }) => !candidates.some((one) => one.memory === memory))
    const linked = new Map(links.map(({ memory, names, words }) => [memory, names + words]))
    return rank({ ...lists, candidates: [...candidates, ...added], linked })
  }

  /** For words of the question that no memory of the profile has: words of the profile with a similar spelling. */
  async #corrected(
    tenantId: string,
    { bank, records }: BankFigures,
    asked: readonly AskedWord[],
    weighed: readonly Weighed[],
  ): Promise<Weighed[]> {
    if (!this.#parts.extensions.found.trigrams) return []
    const unknown = asked.flatMap(({ kind, terms, text }, word) =>
      kind === 'word' && text.length >= shortestCorrected && !weighed.some((one) => one.word === word)
        ? [{ word, term: terms[0]! }]
        : [],
    )
    if (unknown.length === 0) return []
    const some = unknown.slice(0, mostCorrected)
    const similar = await this.#candidates.similar(
      tenantId,
      bank,
      some.map(({ term }) => term),
    )
    return similar.map(({ word, term, records: having, likeness }) => ({
      term,
      word: some.find((one) => one.term === word)!.word,
      kind: 'similar',
      idf: likeness * idfOf(having, records),
      records: having,
    }))
  }
  /** The second step: finds memories by names that the best hits have and the question does not. */
  async #linked(
    tenantId: string,
    bank: BankFigures,
    first: readonly Ranked[],
    { asked, weighed, filter }: Pick<Asked, 'asked' | 'filter'> & { readonly weighed: readonly Weighed[] },
  ): Promise<Candidate[]> {
    const own = new Set(asked.flatMap(({ terms }) => terms))
    const leads = first.slice(0, leading).map(({ candidate }) => candidate.memory)
    const named = await this.#candidates.namesOf(tenantId, bank, leads)
    const links = named
      // A name in only one memory leads to no other memory, and a name in most memories is too common to link them.
      .filter(({ term, records }) => !own.has(term) && records > 1 && records < Math.max(20, bank.records / 20))
      .toSorted((a, b) => a.records - b.records)
      .slice(0, mostLinks)
      .map(({ term, records }): Weighed => ({
        term,
        word: -1,
        kind: 'name',
        idf: idfOf(records, bank.records),
        records,
      }))
    if (links.length === 0) return []
    const words = weighed.filter(({ kind }) => kind === 'word')
    const found = await this.#candidates.linked(tenantId, bank, [...links, ...words], filter, mostLinked)
    // The hits whose names were used are already known, so they are not results of the second step.
    return found.filter(({ memory }) => !leads.includes(memory))
  }
  async #hits(
    tenantId: string,
    asked: readonly AskedWord[],
    ranked: readonly Ranked[],
    maxTokens: number | undefined,
  ): Promise<Hit[]> {
    const read = {
      name: 'memory-hits',
      text: `SELECT ${columns}, m.terms FROM memories m WHERE m.tenant_id = $1 AND m.id = ANY ($2::text[])`,
      values: [tenantId, ranked.map(({ candidate }) => candidate.id)],
    }
    if (ranked.length === 0) return []
    type Answer = [object[], (MemoryRow & { terms: string[] })[]]
    const [, rows] = await this.#parts.database.as('reads').batch<Answer>(tenantId, [byIndex, read])
    const byId = new Map(rows.map((row) => [row.id, row]))
    const hits = ranked.flatMap(({ candidate, score, places }) => {
      const row = byId.get(candidate.id)
      if (!row) return []
      const { terms, ...memory } = row
      return { ...toMemory(memory), score, why: whyOf(places, asked, new Set(terms)) }
    })
    return maxTokens === undefined ? hits : withinBudget(hits, maxTokens)
  }
  /** All memories that the filters allow, newest first. */
  async #newest(tenantId: string, profile: string, question: Question): Promise<Hit[]> {
    const { limit, endUserId, shared, category, from, to, includeSuperseded, maxTokens } = question
    const read = {
      name: 'memory-newest',
      text: `SELECT ${columns} FROM memory_banks b JOIN memories m ON m.tenant_id = $1 AND m.bank = b.bank
             WHERE b.tenant_id = $1 AND b.profile = $2 AND (m.expires_at IS NULL OR m.expires_at > now()) AND ${isOf('$3', '$4')}
               AND ($5::text IS NULL OR m.category = $5) AND ($6::timestamptz IS NULL OR ${happened} >= $6::timestamptz)
               AND ($7::timestamptz IS NULL OR ${happened} < $7::timestamptz) AND ($8::boolean OR m.superseded_by IS NULL)
             ORDER BY m.created_at DESC, m.id DESC LIMIT $9`,
      values: [
        tenantId,
        profile,
        endUserId ?? null,
        shared ?? false,
        category ?? null,
        from ?? null,
        to ?? null,
        includeSuperseded ?? false,
        limit,
      ],
    }
    const [rows] = await this.#parts.database.as('reads').batch<[MemoryRow[]]>(tenantId, [read])
    const hits = rows.map((row, i): Hit => ({ ...toMemory(row), score: 1, why: [{ list: 'recent', rank: i + 1 }] }))
    return maxTokens === undefined ? hits : withinBudget(hits, maxTokens)
  }
}

interface Asked {
  readonly asked: readonly AskedWord[]
  readonly filter: Filter & { readonly profile: string }
  readonly question: Question
  readonly bank: BankFigures
  readonly records: ReadonlyMap<string, number>
}

/** The best hits that fit into `maxTokens`, but always at least the best one. */
function withinBudget<T extends Memory>(hits: readonly T[], maxTokens: number): T[] {
  let left = maxTokens
  return hits.filter(({ processedContent }, i) => {
    const tokens = tokensOf(processedContent)
    if (tokens > left && i > 0) return false
    left -= tokens
    return true
  })
}

const kinds = { words: 'word', names: 'name', times: 'time' } as const
function whyOf(places: Ranked['places'], asked: readonly AskedWord[], terms: ReadonlySet<string>): Why[] {
  return places.map(({ list, rank: place }) => {
    const kind = list in kinds ? kinds[list as keyof typeof kinds] : undefined
    const matched = asked.flatMap((one) =>
      one.kind === kind && one.terms.some((term) => terms.has(term)) ? one.text : [],
    )
    return { list, rank: place, ...(matched.length > 0 ? { matched } : {}) }
  })
}

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
interface Ranked {
  readonly candidate: Candidate
  /** The score, 0 to 1. */
  readonly score: number
  readonly places: readonly { readonly list: ListName; readonly rank: number }[]
}

interface Lists {
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
function rank({ candidates, meaning, linked, total, now }: Lists): Ranked[] {
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
