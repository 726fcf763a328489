import type { Database } from '#contracts/database'
import { byIndex, personsOf, type Whose } from '../bank/rows.ts'
import type { AskedWord } from '../text/terms.ts'
import {
  among,
  fewOfCategory,
  fewOfTime,
  figures,
  find,
  k1,
  kinds,
  knownTerms,
  mostFew,
  mostOfWord,
  names,
  others,
  perWord,
  saturation,
  similar,
} from './statements.ts'

/**
 * The most postings that one search reads, those of the rarest words first. More common words only add to the score of memories that the rare words
 * found.
 */
const mostRead = 4_000
/** The fewest candidates for the ranked lists, and the most memories that a filter is applied to. */
const leastCandidates = 80
const mostFiltered = 2_000
/** The most postings that the second step of a search reads. */
const mostLinking = 1_500

/** The figures of a profile's memories. */
export interface BankFigures {
  readonly bank: number
  readonly records: number
  readonly words: number
  /** The number of memories of the end users in question; without an end user, the number of all memories. */
  readonly theirs: number
}

/** A term to look for, with its weight. */
export interface Weighed {
  readonly term: string
  /** Index of the asked word that the term stands for. */
  readonly word: number
  readonly kind: (typeof kinds)[number]
  readonly idf: number
  /** The number of memories that have the term. */
  readonly records: number
}

/** A memory that matches part of a question. */
export interface Candidate {
  readonly memory: number
  readonly id: string
  readonly words: number
  readonly names: number
  readonly times: number
  readonly alike: number
  /** The summed weight of those words of the question that the memory has. */
  readonly covered: number
  /** The time of the event in milliseconds since the epoch. */
  readonly at: number
  readonly confidence: number
  readonly curated: boolean
  readonly superseded: boolean
}

/** A row of `find`: a candidate with its sums over the postings that were read. */
interface FoundRow extends Candidate {
  readonly length: number
  /** The other asked terms that the memory has, and their weights; null if these terms were not read. */
  readonly terms: readonly string[] | null
  readonly weights: readonly number[] | null
  /** The number of memories that were found before the filter was applied. */
  readonly added: number
}

/** The postings that a question reads. */
interface Plan {
  readonly first: readonly Weighed[]
  readonly postings: number
  /** The terms whose postings are not all read. */
  readonly rest: readonly Weighed[]
}

export interface Filter extends Whose {
  readonly category?: string | undefined
  readonly from?: Date | undefined
  readonly to?: Date | undefined
  readonly superseded: boolean
}

const isFiltered = ({ category, from, to }: Filter): boolean =>
  category !== undefined || from !== undefined || to !== undefined

const wantedOf = (limit: number): number => Math.max(leastCandidates, 2 * limit)

/** Chooses the rarest terms, and counts the postings that will be read for them. */
function planOf(weighed: readonly Weighed[], theirs: number, most: number = mostRead): Plan {
  const first: Weighed[] = []
  let postings = 0
  const sorted = weighed.toSorted((x, y) => x.records - y.records)
  for (const one of sorted) {
    const more = Math.min(one.records, theirs, mostOfWord)
    if (postings + more > most && first.length > 0) break
    first.push(one)
    postings += more
  }
  const rest = sorted.filter((one, i) => i >= first.length || isCut(one, theirs))
  return { first, postings, rest }
}
/** True if only the newest postings of the term are read. */
const isCut = ({ records }: Weighed, theirs: number): boolean => Math.min(records, theirs) > mostOfWord

/**
 * The amounts of work that each cost as much as a request that reads one row, about 2.5 ms of CPU time. They were fitted to searches of 5 and of 60
 * words in banks of 100 to 1,000 memories.
 */
const turnOf = { postings: 100, weights: 1_000, hits: 20 } as const

/**
 * The cost of a search, in requests that read one row. It grows with the postings that are read, and with the terms that are checked in each found
 * memory.
 */
export function turnsOf({ theirs }: BankFigures, weighed: readonly Weighed[], filter: Filter, limit: number): number {
  const { postings } = planOf(weighed, theirs)
  const found = Math.min(postings, isFiltered(filter) ? mostFiltered : 2 * wantedOf(limit))
  const { postings: read, weights, hits } = turnOf
  return Math.ceil(postings / read + (found * weighed.length) / weights + limit / hits)
}

/** Finds memories by their postings. */
export class Candidates {
  readonly #database: Database

  constructor(database: Database) {
    this.#database = database.as('reads')
  }

  /** The figures of a profile, and the number of memories that have each of the terms. Undefined for a profile without memories. */
  async figures(
    tenantId: string,
    profile: string,
    terms: readonly string[],
    whose: Whose,
  ): Promise<{ readonly bank: BankFigures; readonly records: ReadonlyMap<string, number> } | undefined> {
    type Answer = [object[], BankFigures[], { term: string; records: number }[]]
    const [, [bank], known] = await this.#database.batch<Answer>(tenantId, [
      byIndex,
      { ...figures, values: [tenantId, profile, personsOf(whose)] },
      { ...knownTerms, values: [tenantId, profile, terms] },
    ])
    if (!bank || bank.records === 0) return undefined
    return { bank, records: new Map(known.map(({ term, records }) => [term, records])) }
  }
  /** Words of the profile that are spelled like an asked word which no memory has. Needs pg_trgm. */
  async similar(
    tenantId: string,
    bank: number,
    words: readonly string[],
  ): Promise<readonly { word: string; term: string; records: number; likeness: number }[]> {
    const [, rows] = await this.#database.batch<
      [object[], { word: string; term: string; records: number; likeness: number }[]]
    >(tenantId, [byIndex, { ...similar, values: [tenantId, bank, words, words.map(firstOf), words.map(behindFirst)] }])
    return rows
  }
  /** The candidates for the ranked lists: memories with the most asked terms, best first by an approximate score. */
  async find(
    tenantId: string,
    bank: BankFigures,
    weighed: readonly Weighed[],
    filter: Filter,
    limit: number,
  ): Promise<Candidate[]> {
    if (weighed.length === 0) return []
    const wanted = wantedOf(limit)
    const found = await this.#read(tenantId, bank, weighed, filter, { wanted, added: 2 * wanted })
    // Memories that the filter removed may have displaced memories that match. Then the search starts from the filter, or reads more memories.
    const hidden = found.added >= 2 * wanted && found.rows.length < wanted
    if (!hidden || (!isFiltered(filter) && found.rows.length > 0)) return found.rows
    const few = await this.#few(tenantId, bank, filter)
    if (few) return this.#among(tenantId, bank, weighed, filter, few)
    return (await this.#read(tenantId, bank, weighed, filter, { wanted, added: mostFiltered })).rows
  }
  /** Memories with at least one of these names, best first by the sum of names and words. */
  async linked(
    tenantId: string,
    bank: BankFigures,
    weighed: readonly Weighed[],
    filter: Filter,
    wanted: number,
  ): Promise<Candidate[]> {
    return (await this.#read(tenantId, bank, weighed, filter, { wanted, added: 2 * wanted, named: true })).rows
  }
  /** The names in these memories that can link to other memories, and the number of memories that have each name. */
  async namesOf(
    tenantId: string,
    { bank }: BankFigures,
    memories: readonly number[],
  ): Promise<readonly { readonly term: string; readonly records: number }[]> {
    if (memories.length === 0) return []
    const [, rows] = await this.#database.batch<[object[], { term: string; records: number }[]]>(tenantId, [
      byIndex,
      { ...names, values: [tenantId, bank, memories] },
    ])
    return rows
  }
  /** Reads the candidates for memories that were found in other ways, e.g. by their vectors. */
  async of(tenantId: string, memories: readonly number[], filter: Filter): Promise<Candidate[]> {
    if (memories.length === 0) return []
    const [, rows] = await this.#database.batch<[object[], Candidate[]]>(tenantId, [
      byIndex,
      { ...others, values: [tenantId, memories, ...valuesOf(filter)] },
    ])
    return rows
  }

  async #read(
    tenantId: string,
    { bank, records, words, theirs }: BankFigures,
    weighed: readonly Weighed[],
    filter: Filter,
    { wanted, added, named = false }: { readonly wanted: number; readonly added: number; readonly named?: boolean },
  ): Promise<{ rows: Candidate[]; added: number }> {
    const { first, rest } = planOf(weighed, theirs, named ? mostLinking : mostRead)
    const average = Math.max(1, words / Math.max(1, records))
    const [, rows] = await this.#database.batch<[object[], FoundRow[]]>(tenantId, [
      byIndex,
      {
        ...find,
        values: [
          tenantId,
          bank,
          first.map(({ term }) => term),
          first.map(({ idf }) => idf * (1 + k1)),
          first.map(({ kind }) => (byLength[kind] ? perWord / average : 0)),
          // A term whose postings are read only in part gets kind -1. Its postings then add nothing to the sums, because its full weight is read
          // from the rows.
          first.map((one) => (isCut(one, theirs) ? -1 : kinds.indexOf(one.kind))),
          first.map(({ kind }) => roughly[kind]),
          personsOf(filter),
          added,
          ...valuesOf(filter),
          rest.length === 0 ? wanted : 2 * wanted,
          asked(rest),
          named,
        ],
      },
    ])
    return { rows: best(rows, rest, average, wanted), added: rows[0]?.added ?? added }
  }
  /** The memories of a category or a range of time, if they are few; undefined otherwise. */
  async #few(tenantId: string, { bank }: BankFigures, filter: Filter): Promise<number[] | undefined> {
    const { category, from = null, to = null } = filter
    const reads = [
      ...(category === undefined ? [] : [{ ...fewOfCategory, values: [tenantId, bank, category] }]),
      ...(from === null && to === null ? [] : [{ ...fewOfTime, values: [tenantId, bank, from, to] }]),
    ]
    const [, ...all] = await this.#database.batch<{ memory: number }[][]>(tenantId, [byIndex, ...reads])
    return all.find((some) => some.length <= mostFew)?.map(({ memory }) => memory)
  }
  /** The best of the given memories, scored by the terms in their rows. */
  async #among(
    tenantId: string,
    { records, words }: BankFigures,
    weighed: readonly Weighed[],
    filter: Filter,
    memories: readonly number[],
  ): Promise<Candidate[]> {
    const [, rows] = await this.#database.batch<[object[], FoundRow[]]>(tenantId, [
      byIndex,
      { ...among, values: [tenantId, memories, ...valuesOf(filter), asked(weighed)] },
    ])
    return best(rows, weighed, Math.max(1, words / Math.max(1, records)), memories.length)
  }
}

/** The terms to look for in rows, as the keys of a JSON object. */
const asked = (terms: readonly Weighed[]): string | null =>
  terms.length === 0 ? null : JSON.stringify(Object.fromEntries(terms.map(({ term }) => [term, 0])))
/** Adds the scores of the remaining terms in the rows, and returns the first `wanted` candidates by their rough sum. */
function best(rows: readonly FoundRow[], rest: readonly Weighed[], average: number, wanted: number): Candidate[] {
  const byTerm = Map.groupBy(rest, ({ term }) => term)
  return rows
    .map((row) => scored(row, byTerm, average))
    .toSorted((x, y) => roughOf(y) - roughOf(x) || y.memory - x.memory)
    .slice(0, wanted)
}

/** Whether a longer text lowers the score of a term. A long text has more words by chance, but not more names or times. */
const byLength = { word: true, name: false, time: false, similar: true } as const
/** How much each kind has to say in the rough sum by which candidates are chosen. */
const roughly = { word: 1, name: 0.3, time: 0.6, similar: 0.5 } as const
const roughOf = ({ words, names, times, alike }: Candidate): number =>
  roughly.word * words + roughly.name * names + roughly.time * times + roughly.similar * alike

/** The candidate, with the scores of the remaining terms in its row added. */
function scored(
  { terms, weights, length, ...candidate }: FoundRow,
  rest: ReadonlyMap<string, readonly Weighed[]>,
  average: number,
): Candidate {
  const sums = { word: candidate.words, name: candidate.names, time: candidate.times, similar: candidate.alike }
  let { covered } = candidate
  for (const [i, term] of terms?.entries() ?? [])
    for (const { kind, idf } of rest.get(term) ?? []) {
      const against = saturation + (byLength[kind] ? (perWord * length) / average : 0)
      sums[kind] += (idf * weights![i]! * (1 + k1)) / (weights![i]! + against)
      if (kind === 'word') covered += idf
    }
  return { ...candidate, words: sums.word, names: sums.name, times: sums.time, alike: sums.similar, covered }
}

/** The inverse document frequency (BM25) of a term that `records` of `of` memories have. */
export const idfOf = (records: number, of: number): number => Math.log(1 + (of - records + 0.5) / (records + 0.5))

/** The weights of a question's terms in this bank, and the total weight of the question's words. */
export function weigh(
  asked: readonly AskedWord[],
  { records: all }: BankFigures,
  known: ReadonlyMap<string, number>,
): { readonly weighed: Weighed[]; readonly total: number } {
  const weighed: Weighed[] = []
  let total = 0
  for (const [word, { kind, terms, boost }] of asked.entries()) {
    const found = terms
      .flatMap((term) => ({ term, records: known.get(term) ?? 0 }))
      .filter(({ records }) => records > 0)
    const records = found.reduce((sum, one) => sum + one.records, 0)
    const idf = boost * idfOf(Math.min(records, all), all)
    if (kind === 'word') total += idf
    for (const one of found) weighed.push({ term: one.term, word, kind, idf, records: one.records })
  }
  return { weighed, total }
}

const valuesOf = ({ endUserId, shared, category, from, to, superseded }: Filter): unknown[] => [
  endUserId ?? null,
  shared ?? false,
  category ?? null,
  from ?? null,
  to ?? null,
  superseded,
]
/** The bounds of a range in the vocabulary: the first character of a word, and the character that follows it in Unicode. */
const firstOf = (word: string): string => Array.from(word)[0] ?? ''
const behindFirst = (word: string): string => String.fromCodePoint((word.codePointAt(0) ?? 0) + 1)
