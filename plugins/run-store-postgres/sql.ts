import type { Statement } from '#contracts/database'

/**
 * A prepared statement whose text says `:name` where PostgreSQL wants `$1`. Every value that the text names must be given;
 * undefined is null.
 */
export function prepared(name: string, text: string): (values: Readonly<Record<string, unknown>>) => Statement {
  const names: string[] = []
  const numbered = text.replaceAll(/(?<![:\w]):([a-z]\w*)/gi, (_, found: string) => {
    if (!names.includes(found)) names.push(found)
    return `$${names.indexOf(found) + 1}`
  })
  return (values) => ({ name, text: numbered, values: names.map((one) => values[one] ?? null) })
}
