import type { StemCache } from './stems.ts'
import { longestWord } from './stems.ts'
import { dayTerms, timesIn } from './dates.ts'
import { attributeOf, attributesIn } from './facts.ts'
import { type Language, languageOf, type Word, wordsOf } from './words.ts'

// Memories are found by equal terms. A term is a stem (`berlin`), a name without stemming (`@berlin`), a time (`#2026-05`) or the property that a
// statement is about (`=home`).

/** The weight of a term in hundredths, by the place where it stands. */
const weightOf = {
  content: 100,
  name: 100,
  initialName: 50,
  time: 100,
  eventTime: 50,
  category: 50,
  raw: 40,
  alone: 40,
  context: 30,
} as const
/** Further occurrences of a term in one memory add no weight. */
const mostOccurrences = 3
/** The most terms of one memory. The terms of the content come first. */
const mostTerms = 600
/** The most words of one text, and the most characters of the raw input, that are read. */
const mostWords = 2_000
const mostRaw = 16_000
/** The most terms that a memory takes from the statement before it. */
const mostContext = 20
/** Words of a question that are looked for. */
const mostAsked = 32

export interface RecordTexts {
  readonly content: string
  readonly summary?: string | undefined
  readonly category?: string | undefined
  /** The raw input. Questions can then also find words that the rules left out of the content. */
  readonly raw?: string | undefined
  /** The time of the event, or the time at which the statement was made. */
  readonly at: Date
}

export interface RecordTerms {
  readonly language: Language
  readonly terms: readonly string[]
  readonly weights: readonly number[]
  /** The number of words in the content, without stop words. */
  readonly length: number
}

export const isName = (term: string): boolean => term.startsWith('@')
/** Every memory that names some time has this term, so that a question with "when" finds it. */
const namesTime = '#t'

/** The terms by which a memory is found. */
export async function recordTerms(tenantId: string, stems: StemCache, texts: RecordTexts): Promise<RecordTerms> {
  const { content, summary, category, raw, at } = texts
  const language = languageOf(content)
  const parts = {
    content: wordsOf(`${content} ${summary ?? ''}`).slice(0, mostWords),
    category: wordsOf(category ?? ''),
    raw: wordsOf((raw ?? '').slice(0, mostRaw)).slice(0, mostWords),
  }
  const known = await stems.of(tenantId, plain([...parts.content, ...parts.category, ...parts.raw]))
  const stem = (word: Word): string | undefined => stemIn(word, language, known)
  const found = new Map<string, number>()
  const add = (term: string, weight: number, most = weight): void => {
    const before = found.get(term)
    if (before === undefined && found.size >= mostTerms) return
    found.set(term, Math.min(most, (before ?? 0) + weight))
  }
  let length = 0
  for (const word of parts.content) {
    const term = stem(word)
    if (term === undefined) continue
    length++
    const alone = word.ideographs && Array.from(word.text).length === 1
    add(term, alone ? weightOf.alone : weightOf.content, mostOccurrences * weightOf.content)
    if (word.ideographs && !alone) for (const one of Array.from(word.text)) add(one, weightOf.alone)
    if (word.named) add(`@${word.text}`, word.initial ? weightOf.initialName : weightOf.name, weightOf.name)
  }
  const times = timesIn(content, language, at)
  for (const term of times.terms) add(term, weightOf.time)
  if (times.terms.length > 0) add(namesTime, weightOf.time)
  for (const attribute of attributesIn(content)) add(`=${attribute}`, weightOf.content)
  for (const term of dayTerms(at)) if (!found.has(term)) add(term, weightOf.eventTime)
  const fill = (words: readonly Word[], weight: number): void => {
    for (const word of words) {
      const term = stem(word)
      if (term !== undefined && !found.has(term)) add(term, weight)
    }
  }
  fill(parts.category, weightOf.category)
  fill(parts.raw, weightOf.raw)
  return { language, terms: [...found.keys()], weights: [...found.values()], length: Math.min(length, 30_000) }
}

/** Adds terms of the statement before, because an answer is also found by the words of its question. */
export function withContext(record: RecordTerms, context: readonly string[]): RecordTerms {
  const added = context.filter((term) => !record.terms.includes(term)).slice(0, mostContext)
  return {
    ...record,
    terms: [...record.terms, ...added],
    weights: [...record.weights, ...added.map(() => weightOf.context)],
  }
}

/** One word of a question, with all terms that stand for it. */
export interface AskedWord {
  readonly text: string
  readonly kind: 'word' | 'name' | 'time'
  readonly terms: readonly string[]
  readonly boost: number
}

/** The terms that a question searches for. */
export async function askedTerms(
  tenantId: string,
  stems: StemCache,
  question: string,
  now: Date,
): Promise<AskedWord[]> {
  const language = languageOf(question)
  const words = wordsOf(question.slice(0, 8_000)).slice(0, 4 * mostAsked)
  const known = await stems.of(tenantId, plain(words))
  const asked = new Map<string, AskedWord>()
  for (const word of words) {
    if (asked.size >= 2 * mostAsked) break
    const own = stemIn(word, language, known)
    if (own === undefined) continue
    // A memory has stems of its own language. The language of a short question may be unclear, so the stems of the other languages are searched as
    // well.
    const others = (['en', 'de', 'es'] as const).map((one) => stemIn(word, one, known))
    const about = attributeOf(word.text)
    const terms = [...new Set([own, ...others.filter((one) => one !== undefined), ...(about ? [`=${about}`] : [])])]
    asked.set(own, { text: word.text, kind: 'word', terms, boost: 1 })
    if (!word.ideographs && word.text.length > 1)
      asked.set(`@${word.text}`, { text: word.text, kind: 'name', terms: [`@${word.text}`], boost: 1 })
  }
  for (const term of timesIn(question, language, now, true).terms)
    asked.set(term, { text: term.slice(1), kind: 'time', terms: [term], boost: 1 })
  if (asksWhen.test(question)) asked.set(namesTime, { text: 'a time', kind: 'time', terms: [namesTime], boost: 1 })
  return [...asked.values()]
}

const asksWhen =
  /^[^\p{L}\p{N}]*(?:when|what (?:date|day|month|year|time)|how long ago|since when|wann|seit wann|cuándo|cuando|desde cuándo|когда|в каком году)(?!\p{L})|什么时候|何时|哪天|几号/iu

const plain = (words: readonly Word[]): string[] =>
  words.flatMap(({ text, ideographs }) => (ideographs || text.length > longestWord ? [] : [text]))

/** The term of a word in a language; undefined for a stop word. */
function stemIn(word: Word, language: Language, known: Awaited<ReturnType<StemCache['of']>>): string | undefined {
  if (word.ideographs) return word.text
  const stems = known.get(word.text)
  if (!stems) return undefined
  const own = /\p{Script=Cyrillic}/u.test(word.text) ? 'ru' : language === 'zh' || language === 'ru' ? 'en' : language
  return stems[own] ?? undefined
}

/** The words by which two memories are compared: in order, and without stop words. */
export async function essenceOf(
  tenantId: string,
  stems: StemCache,
  content: string,
  at: Date,
): Promise<readonly string[]> {
  const language = languageOf(content)
  const words = wordsOf(content)
  const known = await stems.of(tenantId, plain(words))
  const essence = words.flatMap((word) => stemIn(word, language, known) ?? [])
  // "Yesterday" is another day in each memory, so the dates are compared as well.
  const times = timesIn(content, language, at)
  return times.relative ? [...essence, ...times.terms.toSorted()] : essence
}
