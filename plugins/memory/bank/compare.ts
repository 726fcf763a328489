/** The parts of a statement that are compared. */
interface Compared {
  readonly content: string
  readonly essence: readonly string[]
  readonly fact?: string | null | undefined
}

/** Two statements say the same only if the shorter one has this share of the longer one's words. */
const share = 0.75
/** The fewest words for a comparison by shares. Shorter statements may differ in their only significant word. */
const fewest = 3

const negations =
  /(?<!\p{L})(?:not|no|never|without|neither|nor|cannot|no longer|nicht|kein\p{L}*|nie|niemals|ohne|nunca|jamás|sin|ya no|не|нет|никогда|без)(?!\p{L})|n['’]t(?!\p{L})|[不没无非未别]/giu
const isNegated = (text: string): boolean => (text.match(negations)?.length ?? 0) % 2 === 1

/**
 * Compares a new statement with a stored one. `same`: the stored statement already says it. `newer`: the new statement supersedes the stored one,
 * because it says more, contradicts it, or gives a new value to a property with one value at a time. `other`: both are kept.
 */
export function compare(added: Compared, known: Compared): 'same' | 'newer' | 'other' {
  const contrary = isNegated(added.content) !== isNegated(known.content)
  const [a, b] = [added.essence, known.essence]
  if (sameWords(a, b)) return contrary ? 'newer' : 'same'
  const [less, more] = a.length <= b.length ? [a, b] : [b, a]
  const contained = less.length >= fewest && less.length >= share * more.length && isWithin(less, more)
  if (contained && contrary) return 'newer'
  // An additional number or time makes a different statement, so both statements are kept.
  if (contained && !extra(less, more).some((word) => /[\p{N}#]/u.test(word))) return less === a ? 'same' : 'newer'
  return added.fact && added.fact === known.fact ? 'newer' : 'other'
}

const sameWords = (a: readonly string[], b: readonly string[]): boolean =>
  a.length > 0 && a.length === b.length && a.every((word, i) => word === b[i])

/** True if all words of the shorter statement are in the longer one, in the same order. The order matters: "Ann loves Bob" is not "Bob loves Ann". */
function isWithin(less: readonly string[], more: readonly string[]): boolean {
  let at = 0
  for (const word of more) if (word === less[at]) at++
  return at === less.length
}
function extra(less: readonly string[], more: readonly string[]): string[] {
  const rest = [...less]
  return more.filter((word) => {
    const at = rest.indexOf(word)
    if (at >= 0) rest.splice(at, 1)
    return at < 0
  })
}
