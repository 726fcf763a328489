// Okapi BM25 with its usual parameters: k1 for how fast repeated words stop counting, b for how much length matters.
const k1 = 1.2
const b = 0.75
/** A word of the title counts as often as this many in the text. */
const titleWeight = 3

export interface Ranked<T> {
  readonly item: T
  readonly score: number
}

interface Entry<T> {
  readonly item: T
  readonly counts: ReadonlyMap<string, number>
  readonly length: number
}

/** Ranks items by the words of a query. */
export function createIndex<T>(items: readonly T[], textOf: (item: T) => { title: string; text: string }) {
  const documents = new Map<string, number>()
  const entries: Entry<T>[] = items.map((item) => {
    const { title, text } = textOf(item)
    const counts = new Map<string, number>()
    const count = (words: string[], weight: number): void => {
      for (const word of words) counts.set(word, (counts.get(word) ?? 0) + weight)
    }
    const body = wordsOf(text)
    count(wordsOf(title), titleWeight)
    count(body, 1)
    for (const word of counts.keys()) documents.set(word, (documents.get(word) ?? 0) + 1)
    return { item, counts, length: body.length }
  })
  const averageLength = entries.reduce((sum, entry) => sum + entry.length, 0) / Math.max(1, entries.length) || 1
  const rarity = (word: string): number => {
    const n = documents.get(word) ?? 0
    return Math.log(1 + (entries.length - n + 0.5) / (n + 0.5))
  }
  return (query: string, limit: number): Ranked<T>[] => {
    const words = [...new Set(wordsOf(query))].filter((word) => documents.has(word))
    const ranked: Ranked<T>[] = []
    for (const { item, counts, length } of entries) {
      let score = 0
      for (const word of words) {
        const n = counts.get(word)
        if (n) score += (rarity(word) * n * (k1 + 1)) / (n + k1 * (1 - b + (b * length) / averageLength))
      }
      if (score > 0) ranked.push({ item, score })
    }
    return ranked.sort((x, y) => y.score - x.score).slice(0, limit)
  }
}

/** Lower-case words; a plural `s` is cut, so that "profiles" finds "profile". */
export const wordsOf = (text: string): string[] =>
  (text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? []).map((word) =>
    word.length > 3 && word.endsWith('s') && !word.endsWith('ss') ? word.slice(0, -1) : word,
  )
