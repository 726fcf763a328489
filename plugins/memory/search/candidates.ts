import type { Database } from '#contracts/database'
import { alive, byIndex, happened, isOf, personsOf, type Whose } from '../bank/rows.ts'
import type { AskedWord } from '../text/terms.ts'

/** BM25: how soon further occurrences say no more, and how much a long text has to say more. Statements are short: both are low. */
const k1 = 0.4
const b = 0.15
/** Postings that one search reads, the rarest words first. What is commoner only counts for what those have found. */
const mostRead = 4_000
/** Of one word the newest of so many. */
const mostOfWord = 2_000
/** Memories of which lists are made, where a question does not ask for more, and those that a filter may have to look at. */
const leastCandidates = 80
const mostFiltered = 5_000
/** Names that a memory leads on by. */
const mostNames = 12
/** Found memories whose names are read: those that lead on are among them. */
const mostLeading = 24

/** The figures of a profile's memories. */
export interface BankFigures {
  readonly bank: number
  readonly records: number
  readonly words: number
  /** Memories of the persons who are asked for; all of them where nobody is. */
  readonly theirs: number
}

/** A term to look for, with what it is worth. */
export interface Weighed {
  readonly term: string
  /** Which of the asked words it stands for. */
  readonly word: number
  readonly kind: 'word' | 'name' | 'time' | 'similar'
  readonly idf: number
  /** Memories that have it. */
  readonly records: number
}

/** A memory that has something of a question. */
export interface Candidate {
  readonly memory: number
  readonly id: string
  readonly words: number
  readonly names: number
  readonly times: number
  readonly alike: number
  /** Of the asked words those that it has, by what they are worth. */
  readonly covered: number
  /** Milliseconds of when it happened. */
  readonly at: number
  readonly confidence: number
  readonly curated: boolean
  readonly superseded: boolean
  /** Names in it, by which it leads on to others; null of those that are far behind. */
  readonly named: readonly string[] | null
}

/** A row of `find`: a candidate before its sums. */
interface FoundRow extends Pick<Candidate, 'memory' | 'id' | 'at' | 'confidence' | 'curated' | 'superseded' | 'named'> {
  readonly length: number
  /** Of each asked term its weight there. */
  readonly weights: readonly (number | null)[]
  /** Memories that were found before the filter. */
  readonly added: number
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

/** The rarest terms, whose postings are read, and how many postings they have. */
function rarest(weighed: readonly Weighed[], theirs: number): { readonly first: Weighed[]; readonly postings: number } {
  const first: Weighed[] = []
  let postings = 0
  for (const one of weighed.toSorted((x, y) => x.records - y.records)) {
    const more = Math.min(one.records, theirs, mostOfWord)
    if (postings + more > mostRead && first.length > 0) break
    first.push(one)
    postings += more
  }
  return { first, postings }
}

/** What costs as much as a request that only reads a row, some 2.5 ms of a processor: fitted to searches of 5 and of 60 words in banks of 100 to 1,000. */
const turnOf = { postings: 100, weights: 1_000, hits: 20 } as const

/** How many requests that only read a search costs as much as: by the postings that it reads, and the terms that it looks at in each memory found. */
export function turnsOf({ theirs }: BankFigures, weighed: readonly Weighed[], filter: Filter, limit: number): number {
  const { postings } = rarest(weighed, theirs)
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

  /** The figures of a profile, and how many memories have each of these terms; undefined for a profile without memories. */
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
  /** Words of the profile that are spelled much like one that nobody wrote. Needs pg_trgm. */
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
  /** The memories that have most of the terms, best first by a rough sum; lists are made of them. */
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
    // What the filter has left out may have hidden what it is looking for.
    const hidden = found.added >= 2 * wanted && found.rows.length < wanted
    if (!hidden || (!isFiltered(filter) && found.rows.length > 0)) return found.rows
    return (await this.#read(tenantId, bank, weighed, filter, { wanted, added: mostFiltered })).rows
  }
  /** What lists need to know of memories that were found otherwise. */
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
    most: { readonly wanted: number; readonly added: number },
  ): Promise<{ rows: Candidate[]; added: number }> {
    const { first } = rarest(weighed, theirs)
    const average = Math.max(1, words / Math.max(1, records))
    const [, rows] = await this.#database.batch<[object[], FoundRow[]]>(tenantId, [
      byIndex,
      {
        ...find,
        values: [
          tenantId,
          bank,
          first.map(({ term }) => term),
          first.map(({ kind, idf }) => roughly[kind] * idf),
          first.map(({ kind }) => (byLength[kind] ? perWord / average : 0)),
          weighed.map(({ term }) => term),
          saturation,
          personsOf(filter),
          most.added,
          ...valuesOf(filter),
          2 * most.wanted,
        ],
      },
    ])
    const found = rows.map((row) => scored(row, weighed, average))
    return {
      rows: found.toSorted((x, y) => roughOf(y) - roughOf(x) || y.memory - x.memory).slice(0, most.wanted),
      added: rows[0]?.added ?? most.added,
    }
  }
}

/** A weight that has half of what a term can say, and how much each word of a text adds to it, in texts of average length. */
const saturation = 100 * k1 * (1 - b)
const perWord = 100 * k1 * b
/** The length of a text is against its words, not against what it names. */
const byLength = { word: true, name: false, time: false, similar: true } as const
/** How much each kind has to say in the rough sum by which candidates are chosen. */
const roughly = { word: 1, name: 0.3, time: 0.6, similar: 0.5 } as const
const roughOf = ({ words, names, times, alike }: Candidate): number =>
  roughly.word * words + roughly.name * names + roughly.time * times + roughly.similar * alike

/** A candidate with what each kind of its terms is worth. */
function scored(row: FoundRow, weighed: readonly Weighed[], average: number): Candidate {
  const sums = { word: 0, name: 0, time: 0, similar: 0 }
  let covered = 0
  for (const [i, weight] of row.weights.entries()) {
    if (weight === null) continue
    const { kind, idf } = weighed[i]!
    const against = saturation + (byLength[kind] ? (perWord * row.length) / average : 0)
    sums[kind] += (idf * weight * (1 + k1)) / (weight + against)
    if (kind === 'word') covered += idf
  }
  return { ...row, words: sums.word, names: sums.name, times: sums.time, alike: sums.similar, covered }
}

/** What a term is worth that so many of all memories have. */
export const idfOf = (records: number, of: number): number => Math.log(1 + (of - records + 0.5) / (records + 0.5))

/** The terms of a question with what they are worth here, and the sum of what its words are worth. */
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
/** The condition of a filter on a row `m`, for its values from parameter `$first` on. */
const fits = (first: number): string => `${alive} AND ${isOf(`$${first}`, `$${first + 1}`)}
  AND ($${first + 2}::text IS NULL OR m.category = $${first + 2}::text)
  AND ($${first + 3}::timestamptz IS NULL OR ${happened} >= $${first + 3}::timestamptz)
  AND ($${first + 4}::timestamptz IS NULL OR ${happened} < $${first + 4}::timestamptz)
  AND ($${first + 5}::boolean OR m.superseded_by IS NULL)`

/** Statistics in the order of words: the first character, and the one behind it. */
const firstOf = (word: string): string => Array.from(word)[0] ?? ''
const behindFirst = (word: string): string => String.fromCodePoint((word.codePointAt(0) ?? 0) + 1)

const figures = {
  name: 'memory-bank',
  text: `SELECT b.bank, b.records::float8 AS records, b.words::float8 AS words,
           CASE WHEN $3::int[] IS NULL THEN b.records ELSE (
             SELECT coalesce(sum(p.records), 0) FROM memory_people p WHERE p.tenant_id = $1 AND p.bank = b.bank AND p.person = ANY ($3::int[])
           ) END::float8 AS theirs
         FROM memory_banks b WHERE b.tenant_id = $1 AND b.profile = $2`,
}
const knownTerms = {
  name: 'memory-known-terms',
  text: `SELECT k.term, k.records FROM memory_banks b CROSS JOIN unnest($3::text[]) AS asked (term) CROSS JOIN LATERAL (
           SELECT term, records FROM memory_terms WHERE tenant_id = $1 AND bank = b.bank AND term = asked.term OFFSET 0) k
         WHERE b.tenant_id = $1 AND b.profile = $2`,
}
// Those that begin alike: nobody reads the whole vocabulary for a slip of the pen.
const similar = {
  name: 'memory-similar-terms',
  text: `SELECT asked.word, near.term, near.records, near.likeness FROM unnest($3::text[], $4::text[], $5::text[]) AS asked (word, first, behind)
         CROSS JOIN LATERAL (
           SELECT term, records, likeness FROM (
             SELECT term, records, similarity(term, asked.word)::float8 AS likeness FROM (
               SELECT term, records FROM memory_terms WHERE tenant_id = $1 AND bank = $2 AND term >= asked.first AND term < asked.behind LIMIT 4000) first_alike
           ) close_ones WHERE likeness >= 0.4 ORDER BY likeness DESC LIMIT 3) near`,
}

const shown = `m.number::float8 AS memory, m.id, extract(epoch FROM ${happened})::float8 * 1000 AS at, m.confidence, m.source = 'curated' AS curated,
  m.superseded_by IS NOT NULL AS superseded`
// Without those that only begin a sentence: they may be any word.
const named = `ARRAY(SELECT t.term FROM unnest(m.terms, m.weights) AS t (term, weight)
  WHERE starts_with(t.term, '@') AND t.weight >= 100 LIMIT ${mostNames})`
const rough = 'sum(a.worth * p.weight / (p.weight + $7::float8 + a.per_word * p.length))'
/**
 * The best by a rough sum of what is read of the postings, and of each of them which of all the terms it has: that is in its own row, so
 * that nothing is looked up for it. The limit of the inner select keeps it a look-up of its own: a planner that takes the table for a small
 * one would read all of it instead.
 */
const find = {
  name: 'memory-find',
  text: `WITH found AS MATERIALIZED (
           SELECT p.memory FROM unnest($3::text[], $4::float8[], $5::float8[]) AS a (term, worth, per_word)
             CROSS JOIN LATERAL (
               SELECT memory, weight, length FROM memory_postings
               WHERE tenant_id = $1 AND bank = $2 AND term = a.term AND ($8::int[] IS NULL OR person = ANY ($8::int[]))
               ORDER BY person DESC, memory DESC LIMIT ${mostOfWord}) p
           GROUP BY p.memory ORDER BY ${rough} DESC, p.memory DESC LIMIT $9
         )
         SELECT m.*, (SELECT count(*)::int FROM found) AS added
         FROM (SELECT memory, row_number() OVER () AS place FROM found) f CROSS JOIN LATERAL (
           SELECT ${shown}, m.length, ARRAY(SELECT m.weights[array_position(m.terms, a.term)] FROM unnest($6::text[]) AS a (term)) AS weights,
             CASE WHEN f.place <= ${mostLeading} THEN ${named} END AS named
           FROM memories m WHERE m.tenant_id = $1 AND m.number = f.memory AND ${fits(10)} OFFSET 0) m
         LIMIT $16`,
}
const others = {
  name: 'memory-others',
  text: `SELECT o.*, 0 AS words, 0 AS names, 0 AS times, 0 AS alike, 0 AS covered FROM unnest($2::bigint[]) AS n (number) CROSS JOIN LATERAL (
           SELECT ${shown}, ${named} AS named FROM memories m WHERE m.tenant_id = $1 AND m.number = n.number AND ${fits(3)} OFFSET 0) o`,
}
