import type { IncomingHttpHeaders } from 'node:http'
import { objectErrors, type Upload } from '#contracts/object-store'

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
