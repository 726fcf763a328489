import type { Database } from '#contracts/database'
import type { Language } from './words.ts'

type Stemmed = Exclude<Language, 'zh'>
/** By language: the stem, or null for a stop word. */
type Stems = Readonly<Record<Stemmed, string | null>>

/** The most words whose stems are cached. */
const mostKept = 50_000
/** The most characters of a word. Longer texts are not words, but PostgreSQL would accept them and postings would grow. */
export const longestWord = 64

/**
 * Caches the stems of words, from the dictionaries of PostgreSQL's text search configurations. Stems never change, so each word is asked for once.
 * The oldest words are dropped.
 */
export class StemCache {
  readonly #database: Database
  readonly #kept = new Map<string, Stems>()

  constructor(database: Database) {
    this.#database = database
  }

  /** The stems of all these words. Takes one round trip if some words are new, and none otherwise. */
  async of(tenantId: string, words: Iterable<string>): Promise<ReadonlyMap<string, Stems>> {
    const found = new Map<string, Stems>()
    const missing = new Set<string>()
    for (const word of words) {
      const kept = this.#kept.get(word)
      if (kept) found.set(word, kept)
      else missing.add(word)
    }
    if (missing.size === 0) return found
    const ask = {
      name: 'memory-stems',
      text: `SELECT word, (ts_lexize('pg_catalog.english_stem', base))[1] AS en, (ts_lexize('pg_catalog.german_stem', word))[1] AS de,
               (ts_lexize('pg_catalog.spanish_stem', word))[1] AS es, (ts_lexize('pg_catalog.russian_stem', word))[1] AS ru
             FROM unnest($1::text[], $2::text[]) AS asked (word, base)`,
      values: [[...missing], [...missing].map((word) => irregular.get(word) ?? word)],
    }
    const [rows] = await this.#database.batch<[(Stems & { word: string })[]]>(tenantId, [ask])
    for (const { word, en, de, es, ru } of rows) {
      const stems = { en: folded(en), de: folded(de), es: folded(es), ru: folded(ru) }
      found.set(word, stems)
      this.#kept.set(word, stems)
    }
    for (const oldest of this.#kept.keys()) {
      if (this.#kept.size <= mostKept) break
      this.#kept.delete(oldest)
    }
    return found
  }
}

/** Removes accents, because people often leave them out. */
const folded = (stem: string | null): string | null => stem?.normalize('NFD').replaceAll(/\p{M}/gu, '') ?? null

/** Irregular forms of English words, which no stemmer reduces to their base form. */
const irregular: ReadonlyMap<string, string> = new Map(
  `went gone:go bought:buy brought:bring caught:catch taught:teach thought:think sought:seek fought:fight felt:feel kept:keep left:leave
   met:meet sent:send spent:spend built:build lent:lend lost:lose made:make paid:pay said:say sold:sell told:tell found:find got gotten:get
   gave given:give took taken:take came:come became:become began begun:begin ran:run swam swum:swim sang sung:sing drank drunk:drink
   drove driven:drive rode ridden:ride wrote written:write spoke spoken:speak broke broken:break chose chosen:choose wore worn:wear
   ate eaten:eat fell fallen:fall flew flown:fly grew grown:grow knew known:know threw thrown:throw drew drawn:draw saw seen:see
   stood:stand understood:understand won:win held:hold heard:hear slept:sleep led:lead fed:feed shot:shoot sat:sit lain:lie
   hid hidden:hide bit bitten:bite stole stolen:steal froze frozen:freeze woke woken:wake rose risen:rise shook shaken:shake
   forgot forgotten:forget forgave forgiven:forgive dug:dig hung:hang stuck:stick struck:strike swore sworn:swear tore torn:tear
   bent:bend bound:bind burnt:burn dealt:deal dreamt:dream learnt:learn meant:mean spelt:spell children:child men:man
   women:woman feet:foot teeth:tooth mice:mouse wives:wife knives:knife better best:good worse worst:bad
   married marriage:marry died death:die born birth:birth moved:move`
    .split(/\s+/)
    .reduce<{ forms: string[]; pairs: [string, string][] }>(
      ({ forms, pairs }, part) => {
        const [form = '', base] = part.split(':')
        const all = [...forms, form]
        return base === undefined
          ? { forms: all, pairs }
          : { forms: [], pairs: [...pairs, ...all.map((one): [string, string] => [one, base])] }
      },
      { forms: [], pairs: [] },
    ).pairs,
)
