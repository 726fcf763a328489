import { setImmediate as turn } from 'node:timers/promises'

/** What is read of a question and of a description. */
const maxQueryChars = 200
const maxDescriptionChars = 300
/** The most words of a question. Each is compared with every word of every tool. */
const maxQueryWords = 8
/** A shorter word is compared as a whole. */
const leastOfPart = 3
/** Tools that are compared before others have their turn. */
const comparedAtOnce = 25

interface Searched {
  readonly name: string
  readonly description?: string | undefined
}

/** Resolves to the tools that fit a question best, the best first. */
export type Search<T> = (query: string, limit: number) => Promise<T[]>

/**
 * Searches the names and descriptions of tools, a few at a time. There is no index: what servers list would decide how large it is, and how long one
 * word of a question is looked up in it while all runs of the process wait. The searches of a run take turns, because an answer may ask for many.
 */
export function createSearch<T extends Searched>(tools: readonly T[]): Search<T> {
  let last: Promise<unknown> = Promise.resolve()
  return (query, limit) => {
    const found = last.then(() => search(tools, query.slice(0, maxQueryChars), limit))
    last = found.catch(() => {})
    return found
  }
}

async function search<T extends Searched>(tools: readonly T[], query: string, limit: number): Promise<T[]> {
  // The longest words say what is meant; the others of a long question are mostly those of any.
  const asked = wordsOf(query)
    .toSorted((a, b) => b.length - a.length)
    .slice(0, maxQueryWords)
  const found: { readonly tool: T; readonly fits: readonly number[] }[] = []
  const having = asked.map(() => 0)
  for (const [i, tool] of tools.entries()) {
    if (i % comparedAtOnce === 0) await turn()
    const [name, description] = [wordsOf(tool.name), wordsOf(tool.description?.slice(0, maxDescriptionChars) ?? '')]
    // Words of a name count more.
    const fits = asked.map((word) => 2 * bestFit(word, name) + bestFit(word, description))
    if (fits.every((fit) => fit === 0)) continue
    found.push({ tool, fits })
    for (const [j, fit] of fits.entries()) having[j]! += Number(fit > 0)
  }
  // A word that few tools have says more about which is meant, and so do several words.
  const weights = having.map((count) => Math.log(1 + tools.length / Math.max(count, 1)))
  const scoreOf = (fits: readonly number[]): number =>
    fits.filter((fit) => fit > 0).length * fits.reduce((sum, fit, j) => sum + fit * weights[j]!, 0)
  return found
    .map(({ tool, fits }) => ({ tool, score: scoreOf(fits) }))
    .toSorted((a, b) => b.score - a.score)
    .slice(0, limit)
    .map(({ tool }) => tool)
}

function bestFit(asked: string, words: readonly string[]): number {
  let best = 0
  for (const word of words) {
    if (word === asked) return 1
    if (asked.length < leastOfPart || word.length < leastOfPart) continue
    if (best < 0.5 && word.startsWith(asked)) best = 0.5
    else if (best < 0.4 && isNear(word, asked)) best = 0.4
  }
  return best
}

/** Whether two words differ in one letter at most: one is missing, or another. */
function isNear(a: string, b: string): boolean {
  const [shorter, longer] = a.length < b.length ? [a, b] : [b, a]
  if (longer.length - shorter.length > 1) return false
  let start = 0
  while (start < shorter.length && a[start] === b[start]) start++
  let end = 0
  while (end < shorter.length - start && a.at(-1 - end) === b.at(-1 - end)) end++
  return longer.length - start - end <= 1
}

/** The different words of a text. Names are split: `listPullRequests` and `list_pull_requests` are three words. */
const wordsOf = (text: string): string[] => [
  ...new Set(
    text
      .replaceAll(/(?<=[\p{Ll}\p{N}])(?=\p{Lu})/gu, ' ')
      .toLowerCase()
      .split(/[^\p{L}\p{N}]+/u)
      .filter((word) => word !== ''),
  ),
]
