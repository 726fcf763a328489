import { isAscii } from 'node:buffer'
import { randomUUID } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { Socket } from 'node:net'
import { errorCodes, type FastifyRequest } from 'fastify'
import type { AppError } from '../contracts/errors.ts'
import { httpErrors, invalidRequest } from '../contracts/http-errors.ts'
import type { App } from '../http/app.ts'

/** In this scope a body is a stream, whatever its content type. Handlers read it while it arrives. */
export function takeStreams(app: App): void {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', (_request: unknown, body: unknown, done: (error: null, body: unknown) => void) =>
    done(null, body),
  )
}

/** In this scope a body is its bytes, whatever its content type. `bodyLimit` defaults to the listener's. */
export function takeBytes(app: App, bodyLimit?: number): void {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser(
    '*',
    { parseAs: 'buffer', ...(bodyLimit === undefined ? {} : { bodyLimit }) },
    async (_request: unknown, body: Buffer) => body,
  )
}

/**
 * A buffer of the announced length is allocated at once if it is at most so large, and otherwise only after so many bytes: a sender that announces
 * much and sends little gets little memory.
 */
const trustedBytes = 512 * 1024

/** Smaller buffers are cheap garbage, and may share their memory with others. */
const leastGiven = 32 * 1024

/**
 * Gives the memory of a large buffer back at once, and leaves the buffer empty. Otherwise it is kept until the next collection, and megabytes of new
 * memory are what a body costs most: the system fills each page with zeros when it is touched for the first time. Does nothing to a buffer that
 * shares its memory.
 */
export function giveBack({ buffer, byteLength }: Buffer): void {
  if (byteLength >= leastGiven && byteLength === buffer.byteLength) (buffer as ArrayBuffer).transfer(0)
}

/**
 * All bytes of a body, copied into place while they arrive. Joining megabytes at the end, as Fastify's own parsers do, takes milliseconds. Rejects
 * with Fastify's errors.
 */
export function bodyOf({ routeOptions, headers }: FastifyRequest, payload: IncomingMessage): Promise<Buffer> {
  const said = headers['content-length']
  const most = said === undefined ? routeOptions.bodyLimit : Number(said)
  if (most > routeOptions.bodyLimit) return Promise.reject(new errorCodes.FST_ERR_CTP_BODY_TOO_LARGE())
  const { promise, resolve, reject } = Promise.withResolvers<Buffer>()
  // What an injected request brings belongs to whoever injected it.
  const ours = payload.socket instanceof Socket
  let room = Buffer.alloc(0)
  let bytes = 0
  const take = (part: Buffer): void => {
    const at = bytes
    bytes += part.length
    if (bytes > most) {
      payload.off('data', take)
      return reject(new errorCodes.FST_ERR_CTP_BODY_TOO_LARGE())
    }
    if (bytes > room.length) {
      const before = room
      const whole = bytes > trustedBytes || (said !== undefined && most <= trustedBytes)
      room = Buffer.allocUnsafe(whole ? most : Math.max(bytes, 2 * before.length))
      before.copy(room, 0, 0, at)
      giveBack(before)
    }
    part.copy(room, at)
    if (ours) giveBack(part)
  }
  payload.on('data', take)
  payload.once('end', () => {
    if (said !== undefined && bytes !== most) reject(new errorCodes.FST_ERR_CTP_INVALID_CONTENT_LENGTH())
    else resolve(room.subarray(0, bytes))
  })
  payload.once('error', (error) => reject(Object.assign(error, { statusCode: 400 })))
  return promise
}

/** Deeper JSON can be parsed, but overflows the stack when it is serialized again. */
const maxJsonDepth = 64
/** Each value and each name costs time and memory however short it is, and all of a body is parsed in one step, in which nobody else is served. */
const maxJsonParts = 200_000

/** Parses a body from another process of ours, such as the log of a run that is tried again. Its bytes are bounded where it is made. */
export const parseOwnJson = (body: Buffer): unknown => parseJson(body, Infinity)

/** Parses a JSON body. An empty body is `undefined`, because the contract has routes whose body is optional. Throws an AppError. */
export function parseJson(body: Buffer, maxParts = maxJsonParts): unknown {
  if (body.length === 0) return undefined
  const long: LongString[] = []
  // Each level needs one byte to open and one to close it.
  if (body.length > 2 * maxJsonDepth) {
    const { depth, parts } = measureJson(body, long)
    if (depth > maxJsonDepth) throw invalidRequest({ message: `The body nests deeper than ${maxJsonDepth} levels.` })
    if (parts > maxParts) throw tooManyParts()
  }
  try {
    return parseAround(body, long)
  } catch {
    throw invalidRequest({ message: 'The body is not valid JSON.' })
  }
}

const tooManyParts = (): AppError =>
  httpErrors.bodyTooLarge({
    message: `The body has more than ${maxJsonParts} values and names of fields; send fewer at once.`,
    detail: { max: maxJsonParts },
  })

interface JsonMeasures {
  /** How deep the text nests. */
  readonly depth: number
  /** How many values and names it has; an empty list or object counts as if it had one. */
  readonly parts: number
}

/** Measures JSON text without parsing it, and ends when it has more than `most` parts. Adds the positions of its long strings to `long`. */
export function measureJson(body: Buffer, long?: LongString[], most = Infinity): JsonMeasures {
  let open = 0
  let depth = 0
  let parts = 1
  for (let i = 0; i < body.length && parts <= most; i++) {
    const c = body[i]
    if (c === 0x22) {
      const from = i + 1
      i = endOfString(body, from)
      if (i - from > longBytes) long?.push([from, i])
    } else if (c === 0x2c || c === 0x3a) parts++
    else if (c === 0x7b || c === 0x5b) {
      parts++
      depth = Math.max(depth, ++open)
    } else if (c === 0x7d || c === 0x5d) open--
  }
  return { depth, parts }
}

/** Calling into Node costs more than checking this many bytes. */
const lookedAt = 64

/** The position of the closing quote of the string that begins at `from`. An attachment is one string of megabytes, and others have very many quotes. */
function endOfString(body: Buffer, from: number): number {
  for (let at = from; at < body.length;) {
    for (const until = at + lookedAt; at < until; at++) {
      const c = body[at]
      if (c === 0x22 || c === undefined) return at
      if (c === 0x5c) at++
    }
    const quote = body.indexOf(0x22, at)
    if (quote === -1) break
    let before = quote
    while (before > at && body[before - 1] === 0x5c) before--
    if ((quote - before) % 2 === 0) return quote
    at = quote + 1
  }
  return body.length
}

/** The start and end of a string, without its quotes. */
type LongString = readonly [from: number, to: number]
/** Strings of more bytes are kept out of the JSON parser, because the base64 of a file needs no unescaping. */
const longBytes = 64 * 1024

/** Parses a body without its longest strings, and puts them back afterwards: parsing megabytes character by character would block the event loop. */
function parseAround(body: Buffer, long: readonly LongString[]): unknown {
  // A random mark that no client can guess.
  const mark = long.length > 0 ? `${randomUUID()}:` : ''
  const parts: Buffer[] = []
  const texts: string[] = []
  let at = 0
  for (const [from, to] of long) {
    const text = body.subarray(from, to)
    if (isKey(body, to) || text.includes(0x5c) || !isAscii(text) || hasControls(text)) continue
    parts.push(body.subarray(at, from), Buffer.from(mark + String(texts.length)))
    texts.push(text.toString('latin1'))
    at = to
  }
  const rest = texts.length > 0 ? Buffer.concat([...parts, body.subarray(at)]) : body
  const value: unknown = JSON.parse(rest.toString('utf8'))
  // Nearly all bodies are done. A name may be written with escapes.
  if (texts.length === 0 && !rest.includes('__proto__') && !rest.includes('\\u00')) return value
  return settled(value, (text) => (text.startsWith(mark) ? texts[Number(text.slice(mark.length))] : undefined))
}

/**
 * Takes out the fields that would become the prototype of what they are copied into, and replaces the texts for which `other` has another one. A
 * reviver of JSON.parse would take several times as long.
 */
function settled(value: unknown, other: (text: string) => string | undefined): unknown {
  const whole = [value]
  const open: object[] = [whole]
  for (let one = open.pop(); one; one = open.pop()) {
    const items = one as Record<string | number, unknown>
    const settle = (at: string | number): void => {
      const item = items[at]
      if (typeof item === 'string') items[at] = other(item) ?? item
      else if (typeof item === 'object' && item !== null) open.push(item)
    }
    if (Object.hasOwn(items, '__proto__')) delete items['__proto__']
    if (Array.isArray(one)) for (let i = 0; i < one.length; i++) settle(i)
    else for (const name in one) settle(name)
  }
  return whole[0]
}

/** Whether a string that ends at `quote` is followed by a colon, and so is a key. */
function isKey(body: Buffer, quote: number): boolean {
  let at = quote + 1
  while (body[at]! <= 0x20) at++
  return body[at] === 0x3a
}

/**
 * JSON strings contain no control characters. The text is ASCII: subtracting a space from each of four bytes at once borrows only for control
 * characters.
 */
function hasControls(text: Buffer): boolean {
  const head = (4 - (text.byteOffset % 4)) % 4
  const words = new Uint32Array(text.buffer, text.byteOffset + head, (text.length - head) >> 2)
  for (let i = 0; i < words.length; i++) if ((words[i]! - 0x20202020) & 0x80808080) return true
  const isControl = (byte: number): boolean => byte < 0x20
  return text.subarray(0, head).some(isControl) || text.subarray(head + 4 * words.length).some(isControl)
}
