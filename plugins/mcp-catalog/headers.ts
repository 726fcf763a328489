import { type HeaderMap, secretsIn } from '#contracts/secrets'
import { invalidField } from '#kernel'
import type { Entry } from './entry.ts'
import { maskedValue } from './schema.ts'

const token = /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}$/
/** The characters of a header's value. A line break would add a second header. */
const value = /^[\t\x20-\x7e\x80-\xff]*$/
/** Headers that the transport sets itself. */
const reserved =
  /^(accept|accept-encoding|connection|content-(length|type|encoding)|expect|host|keep-alive|last-event-id|mcp-.*|proxy-.*|te|trailer|transfer-encoding|upgrade)$/i

/** Rejects with 400 for headers that cannot be sent, naming the first one. */
export function checkHeaders({ headers = {}, oauth }: Pick<Entry, 'headers' | 'oauth'>): void {
  const seen = new Set<string>()
  for (const [name, text] of Object.entries(headers)) {
    const field = `body/headers/${name}`
    if (!token.test(name)) throw invalidField(field, 'must have a name that headers can have')
    if (reserved.test(name)) throw invalidField(field, 'must not be a header of the transport itself')
    if (seen.has(name.toLowerCase())) throw invalidField(field, 'must be there once, whatever its case')
    if (oauth && name.toLowerCase() === 'authorization') {
      throw invalidField(field, 'must not be there beside `oauth`, which sends its token in it')
    }
    seen.add(name.toLowerCase())
    if (!value.test(text))
      throw invalidField(field, 'must not hold a line break, or a character that headers do not take')
    secretsIn(text)
  }
}

/** Headers as answers show them: references stay readable, other values are masked. */
export const shownHeaders = (headers: HeaderMap): Record<string, string> =>
  Object.fromEntries(
    Object.entries(headers).map(([name, text]) => [name, secretsIn(text).length > 0 ? text : maskedValue]),
  )

/** Replaces each masked value by the stored one. 400 when nothing is stored for that header. */
export function keptHeaders(headers: HeaderMap | undefined, before: Pick<Entry, 'headers'> | undefined) {
  if (!headers || !Object.values(headers).includes(maskedValue)) return headers
  const stored = new Map(Object.entries(before?.headers ?? {}).map(([name, text]) => [name.toLowerCase(), text]))
  const kept = (name: string, text: string): string => {
    if (text !== maskedValue) return text
    const known = stored.get(name.toLowerCase())
    if (known === undefined)
      throw invalidField(`body/headers/${name}`, `must have a value: '${maskedValue}' stands for one that is stored`)
    return known
  }
  return Object.fromEntries(Object.entries(headers).map(([name, text]) => [name, kept(name, text)]))
}
