/** A statement, as it is compared with another one. */
interface Compared {
  readonly content: string
  readonly essence: readonly string[]
  readonly fact?: string | null | undefined
}

/** Of two statements the shorter one must have so many of the other's words for both to say the same. */
const share = 0.75
/** Shorter ones may differ in their only word of weight. */
const fewest = 3

const negations =
  /(?<!\p{L})(?:not|no|never|without|neither|nor|cannot|no longer|nicht|kein\p{L}*|nie|niemals|ohne|nunca|jamás|sin|ya no|не|нет|никогда|без)(?!\p{L})|n['’]t(?!\p{L})|[不没无非未别]/giu
const isNegated = (text: string): boolean => (text.match(negations)?.length ?? 0) % 2 === 1

/**
 * How a new statement stands to one that is there. `same`: that says it already. `newer`: it takes the other's place, since it says
 * the same and more, the contrary, or gives another value to what has one value at a time. `other`: both stand.
 */
export function compare(added: Compared, known: Compared): 'same' | 'newer' | 'other' {
  const contrary = isNegated(added.content) !== isNegated(known.content)
  const [a, b] = [added.essence, known.essence]
  if (sameWords(a, b)) return contrary ? 'newer' : 'same'
  const [less, more] = a.length <= b.length ? [a, b] : [b, a]
  const contained = less.length >= fewest && less.length >= share * more.length && isWithin(less, more)
  if (contained && contrary) return 'newer'
  // A number, a name or a time more is another statement, as is a list that goes on.
  if (contained && !extra(less, more).some((word) => /[\p{N}#]/u.test(word))) return less === a ? 'same' : 'newer'
  return added.fact && added.fact === known.fact ? 'newer' : 'other'
}

const sameWords = (a: readonly string[], b: readonly string[]): boolean =>
  a.length > 0 && a.length === b.length && a.every((word, i) => word === b[i])

/** All words of one are in the other, in the same order: "Ann loves Bob" is not "Bob loves Ann". */
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
