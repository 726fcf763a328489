import type { IncomingHttpHeaders } from 'node:http'
import { objectErrors, type ByteRange, type Upload, type WriteCondition } from '#contracts/object-store'

// What the headers of RFC 9110 and 3230 say of an object.

export const quoted = (etag: string): string => `"${etag}"`

/** The tags of a list like `"a", W/"b"`, or '*'. */
const tagsOf = (header: string): string[] =>
  header.trim() === '*' ? ['*'] : [...header.matchAll(/(?:W\/)?"([^"]*)"/g)].map(([, tag]) => tag!)

/** True when what the client has is what is there: 304. */
export const isKnown = ({ 'if-none-match': header }: IncomingHttpHeaders, etag: string): boolean =>
  header !== undefined && tagsOf(header).some((tag) => tag === '*' || tag === etag)

/** The condition of a write. One that cannot be kept is refused: whoever sends it would lose what somebody else wrote. */
export function conditionOf({ 'if-match': match, 'if-none-match': none }: IncomingHttpHeaders): WriteCondition {
  if (none !== undefined && none.trim() !== '*') {
    throw objectErrors.preconditionFailed({
      message: "If-None-Match of a write is '*': only where there is nothing yet.",
    })
  }
  return { ...matchOf(match), ...(none === undefined ? {} : { ifNoneMatch: '*' as const }) }
}

export function matchOf(header: string | undefined): { readonly ifMatch?: string } {
  if (header === undefined) return {}
  const [tag, ...others] = tagsOf(header)
  // A weak tag never matches here, nor do several: there is one object.
  if (tag === undefined || others.length > 0 || header.trim().startsWith('W/')) throw objectErrors.preconditionFailed()
  return { ifMatch: tag }
}

/** What `Range` asks for: undefined for the whole, also where it is not understood; 'none' when there are no such bytes. */
export function rangeOf(header: string | undefined, bytes: number): ByteRange | 'none' | undefined {
  const [, first = '', last = ''] = /^bytes=(\d{0,15})-(\d{0,15})$/.exec(header?.trim() ?? '') ?? []
  if (first === '' && last === '') return undefined
  if (first === '')
    return last === '0' || bytes === 0 ? 'none' : { from: Math.max(0, bytes - Number(last)), to: bytes - 1 }
  const from = Number(first)
  const to = last === '' ? bytes - 1 : Math.min(Number(last), bytes - 1)
  if (last !== '' && Number(last) < from) return undefined
  return from >= bytes ? 'none' : { from, to }
}

const base64 = (text: string, bytes: number): string => {
  const read = Buffer.from(text, 'base64')
  if (read.length !== bytes || read.toString('base64') !== text) throw objectErrors.invalidChecksum()
  return read.toString('hex')
}

/** What the bytes of an upload have to come to, in hex: of x-checksum-sha256, Content-MD5, Content-Digest and Digest. */
export function checksumsOf(headers: IncomingHttpHeaders): NonNullable<Upload['checksums']> {
  const own = headers['x-checksum-sha256']
  const found: { sha256?: string; md5?: string } = {}
  const add = (kind: 'sha256' | 'md5', value: string): void => {
    if (found[kind] !== undefined && found[kind] !== value) throw objectErrors.checksumMismatch()
    found[kind] = value
  }
  if (typeof own === 'string') add('sha256', /^[0-9a-fA-F]{64}$/.test(own) ? own.toLowerCase() : base64(own, 32))
  const md5 = headers['content-md5']
  if (typeof md5 === 'string') add('md5', base64(md5, 16))
  for (const header of [headers['digest'], headers['content-digest']]) {
    if (typeof header !== 'string') continue
    // sha-256=…; RFC 9530 has the value between colons.
    for (const [, name, value] of header.matchAll(/([\w-]+)=:?([A-Za-z0-9+/]+=*):?/g)) {
      if (name!.toLowerCase() === 'sha-256') add('sha256', base64(value!, 32))
      else if (name!.toLowerCase() === 'md5') add('md5', base64(value!, 16))
    }
    if (found.sha256 === undefined && found.md5 === undefined) throw objectErrors.invalidChecksum()
  }
  return found
}
