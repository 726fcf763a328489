import { Socket } from 'node:net'
import { Readable } from 'node:stream'
import type { IncomingHttpHeaders } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import {
  type ByteRange,
  type ObjectBody,
  objectErrors,
  type ObjectInfo,
  type OpenObject,
  type WriteCondition,
} from '#contracts/object-store'

// Files over HTTP: the headers of RFC 9110, and the bytes in the order in which they are read.

/** Milliseconds. A reader that takes nothing for longer is dropped, because it holds a file or connection that it does not own. */
const unreadMs = 60_000

type FoundFile = OpenObject<Pick<ObjectInfo, 'bytes' | 'contentType' | 'updatedAt' | 'etag'>>

export const quoted = (etag: string): string => `"${etag}"`

/** The tags of a list like `"a", W/"b"`, or '*'. */
const tagsOf = (header: string): string[] =>
  header.trim() === '*' ? ['*'] : [...header.matchAll(/(?:W\/)?"([^"]*)"/g)].map(([, tag]) => tag!)

/** True when the client already has the current content: 304. */
export const isKnown = ({ 'if-none-match': header }: IncomingHttpHeaders, etag: string): boolean =>
  header !== undefined && tagsOf(header).some((tag) => tag === '*' || tag === etag)

/** The condition of a write. An unsupported condition is refused, because ignoring it could overwrite another client's data. */
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
  // A weak tag never matches a write, nor do several tags, because there is one object.
  if (tag === undefined || others.length > 0 || header.trim().startsWith('W/')) throw objectErrors.preconditionFailed()
  return { ifMatch: tag }
}

/** The range that `Range` requests. Undefined: the whole file, also when the header is not understood. 'none': there are no such bytes. */
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

/** Sends the bytes with the type of their upload. A browser saves them as a file, because they may be a page from an untrusted author. */
export async function sendFile(request: FastifyRequest, reply: FastifyReply, found: FoundFile): Promise<FastifyReply> {
  const { info } = found
  const { range: asked, 'if-range': condition } = request.headers
  void reply.headers({
    'accept-ranges': 'bytes',
    'content-disposition': 'attachment',
    'content-security-policy': "sandbox; default-src 'none'",
    'last-modified': new Date(info.updatedAt).toUTCString(),
    'x-content-type-options': 'nosniff',
  })
  if (isKnown(request.headers, info.etag)) return withoutBody(reply.code(304), found)
  const old = condition !== undefined && condition !== quoted(info.etag)
  const range = old ? undefined : rangeOf(asked, info.bytes)
  if (range === 'none') {
    await found.close()
    throw objectErrors.rangeNotSatisfiable({ headers: { 'content-range': `bytes */${info.bytes}` } })
  }
  void reply.headers({
    'content-type': info.contentType,
    'content-length': range ? range.to - range.from + 1 : info.bytes,
    ...(range ? { 'content-range': `bytes ${range.from}-${range.to}/${info.bytes}` } : {}),
  })
  if (range) void reply.code(206)
  if (request.method === 'HEAD') return withoutBody(reply, found)
  return sendBody(reply, await found.read(range))
}

/** Sends the headers of a file that need not be read. */
export async function withoutBody(reply: FastifyReply, found: Pick<FoundFile, 'close'>): Promise<FastifyReply> {
  await found.close()
  // For an empty text Fastify would set a length of 0, but HEAD must report how many bytes GET would send.
  return reply.send(Readable.from([]))
}

/** Ends an exchange whose connection is idle for too long. */
export function dropWhenIdle({ raw }: FastifyReply): void {
  // Requests in tests may have no connection.
  if (raw.socket instanceof Socket) raw.setTimeout(unreadMs, () => raw.destroy())
}

export function sendBody(reply: FastifyReply, body: ObjectBody): FastifyReply {
  dropWhenIdle(reply)
  return reply.send(body instanceof Readable ? body : Readable.from(body, { objectMode: false }))
}

/** Content types by file extension, for files without a stored type. No browser executes any of them, because they are sent as attachments. */
const contentTypes: Readonly<Record<string, string>> = {
  css: 'text/css',
  csv: 'text/csv',
  gif: 'image/gif',
  gz: 'application/gzip',
  htm: 'text/html',
  html: 'text/html',
  jpeg: 'image/jpeg',
  jpg: 'image/jpeg',
  js: 'text/javascript',
  json: 'application/json',
  md: 'text/markdown',
  mjs: 'text/javascript',
  pdf: 'application/pdf',
  png: 'image/png',
  py: 'text/x-python',
  sh: 'text/x-shellscript',
  svg: 'image/svg+xml',
  ts: 'text/x-typescript',
  tsv: 'text/tab-separated-values',
  txt: 'text/plain',
  webp: 'image/webp',
  xml: 'application/xml',
  yaml: 'application/yaml',
  yml: 'application/yaml',
  zip: 'application/zip',
}

/** The content type for a file name. Undefined when the extension is unknown. */
export const contentTypeOf = (path: string): string | undefined =>
  contentTypes[/\.([a-z]+)$/i.exec(path)?.[1]?.toLowerCase() ?? '']
