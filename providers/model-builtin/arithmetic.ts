const number = String.raw`\d+(?:[.,]\d+)*`

/** An arithmetic expression inside a message, in the form `calculate` takes; undefined when there is none. */
export function arithmeticIn(text: string): string | undefined {
  const percent = new RegExp(String.raw`(${number})\s*(?:%|percent)\s+of\s+(${number})`, 'i').exec(text)
  if (percent) return `${plain(percent[2]!)} * ${plain(percent[1]!)} / 100`
  const worded = text
    .replace(/(?<=\d\)?)\s*(?:times|multiplied by|x|×)\s*(?=[(\d])/gi, ' * ')
    .replace(/(?<=\d\)?)\s*(?:divided by|over|÷)\s*(?=[(\d])/gi, ' / ')
    .replace(/(?<=\d\)?)\s+plus\s+(?=[(\d])/gi, ' + ')
    .replace(/(?<=\d\)?)\s+minus\s+(?=[(\d])/gi, ' - ')
  // At least one operator between two numbers; a date such as 2026-11-21 is not a sum.
  const found = new RegExp(String.raw`[(\s]*-?${number}(?:[\s()]*[-+*/^][\s(]*-?${number})+[\s)]*`)
    .exec(worded)?.[0]
    .trim()
  if (found === undefined || /^\d{4}-\d{2}-\d{2}$/.test(found)) return undefined
  return balanced(found) ? plain(found) : undefined
}

/** `1,250.5` is 1250.5. */
const plain = (text: string): string => text.replace(/(?<=\d),(?=\d{3}(?!\d))/g, '').replace(/(?<=\d),(?=\d)/g, '.')

function balanced(text: string): boolean {
  let depth = 0
  for (const c of text) {
    if (c === '(') depth++
    if (c === ')' && --depth < 0) return false
  }
  return depth === 0
}
