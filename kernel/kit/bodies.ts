import { isAscii } from 'node:buffer'
import { randomUUID } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { Socket } from 'node:net'
import { errorCodes, type FastifyRequest } from 'fastify'
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

type Reviver = (key: string, value: unknown) => unknown

/** The start and end of a string, without its quotes. */
export type LongString = readonly [from: number, to: number]
/** Strings of more bytes are kept out of the JSON parser, because the base64 of a file needs no unescaping. */
export const longBytes = 64 * 1024
const mostRest = 256 * 1024

/** Parses a body without its longest strings, and puts them back afterwards: parsing megabytes character by character would block the event loop. */
export function parseAround(
  body: Buffer,
  long: readonly LongString[],
  guardOf: (text: Buffer) => Reviver | undefined,
): unknown {
  // A random mark that no client can guess.
  const mark = `${randomUUID()}:`
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
  const rest = Buffer.concat([...parts, body.subarray(at)])
  // Checking very many values would cost more than it saves.
  if (rest.length > mostRest) return JSON.parse(body.toString('utf8'), guardOf(body))
  const guard = guardOf(rest)
  return JSON.parse(rest.toString('utf8'), (key, value: unknown) => {
    const known = guard ? guard(key, value) : value
    return typeof known === 'string' && known.startsWith(mark) ? texts[Number(known.slice(mark.length))] : known
  })
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
