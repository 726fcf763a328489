import type { FastifyRequest } from 'fastify'
import { type LogChunk, peekType } from '../contracts/run-event.ts'

/** With more unread bytes of a stream its writer waits. */
const highWater = 256 * 1024

/**
 * Connects a producer of lines to one reader. All lines of one event-loop turn leave as one chunk, and the producer waits while more than 256 KiB
 * are unread. Ending the iteration ends the producer.
 */
export interface LineQueue extends AsyncIterable<Buffer> {
  /** Adds a whole line (with its newline). Resolves when the queue has room again; usually returns undefined, which means that there is room. */
  push(line: string): Promise<void> | undefined
  close(error?: unknown): void
}

/** `onLeave` is called when the reader leaves before the end. */
export function createLineQueue(onLeave?: () => void): LineQueue {
  let parts: string[] = []
  let size = 0
  /** True when the turn of the pushed lines is over, or there are enough for a chunk. */
  let due = false
  let turning = false
  let closed = false
  let failure: unknown
  let reader: PromiseWithResolvers<IteratorResult<Buffer>> | undefined
  let room: PromiseWithResolvers<void> | undefined
  const take = (): Buffer => {
    const chunk = Buffer.from(parts.length === 1 ? parts[0]! : parts.join(''), 'utf8')
    parts = []
    size = 0
    due = false
    room?.resolve()
    room = undefined
    return chunk
  }
  const serve = (): void => {
    if (!reader || !(due || closed)) return
    if (parts.length > 0) reader.resolve({ done: false, value: take() })
    else if (failure !== undefined) reader.reject(failure)
    else reader.resolve({ done: true, value: undefined })
    reader = undefined
  }
  const turned = (): void => {
    turning = false
    due = parts.length > 0
    serve()
  }
  // Written by hand, because a generator costs each chunk three turns of the microtask queue.
  const iterator: AsyncIterator<Buffer> = {
    next() {
      const { promise } = (reader = Promise.withResolvers())
      serve()
      return promise
    },
    async return() {
      const early = !closed
      closed = true
      parts = []
      room?.resolve()
      serve()
      if (early) onLeave?.()
      return { done: true, value: undefined }
    },
  }
  return {
    push(line) {
      if (closed) return undefined
      parts.push(line)
      size += line.length
      if (size >= highWater) {
        due = true
        serve()
      } else if (!turning) {
        // Let the producer finish its turn, so that its lines leave together.
        turning = true
        setImmediate(turned)
      }
      return size < highWater ? undefined : (room ??= Promise.withResolvers<void>()).promise
    },
    close(error) {
      closed = true
      failure = error
      room?.resolve()
      serve()
    },
    [Symbol.asyncIterator]: () => iterator,
  }
}

/**
 * Begins with the first read, as a generator does, but at a lower cost. A refusal rejects that read, and nothing follows. Undefined: there is
 * nothing to read.
 */
export function startOnRead<T>(begin: () => AsyncIterator<T> | undefined): AsyncIterableIterator<T> {
  const done = { done: true, value: undefined } as const
  const nothing: AsyncIterator<T> = { next: async () => done }
  let source: AsyncIterator<T> | undefined
  return {
    next() {
      if (source) return source.next()
      try {
        source = begin() ?? nothing
        return source.next()
      } catch (error) {
        source = nothing
        return Promise.reject(error as Error)
      }
    },
    return() {
      source ??= nothing
      return source.return?.() ?? Promise.resolve(done)
    },
    [Symbol.asyncIterator]() {
      return this
    },
  }
}

/** A longer line ends the stream that carries it, because its peer is broken or hostile. */
export const maxLineBytes = 4 * 1024 * 1024

export class OversizedLineError extends Error {
  constructor(limit: number = maxLineBytes) {
    super(`a line is longer than ${limit} bytes`)
    this.name = 'OversizedLineError'
  }
}

/** How many parts of a line are held before they are joined, because a peer may send one byte at a time. */
const maxParts = 1_024

/**
 * Cuts a byte stream into chunks that end at a newline, copying only what straddles two reads. A last line without its
 * newline is torn: it is dropped, and the reader sees a stream that ended early.
 */
export async function* wholeLines(
  source: AsyncIterable<Uint8Array>,
  limit: number = maxLineBytes,
): AsyncGenerator<Buffer> {
  // Joined only once, because a line of many reads would otherwise be copied with each of them.
  let rest: Buffer[] = []
  let held = 0
  for await (const read of source) {
    const bytes = Buffer.isBuffer(read) ? read : Buffer.from(read.buffer, read.byteOffset, read.byteLength)
    const end = bytes.lastIndexOf(0x0a) + 1
    if (end === 0) {
      rest.push(bytes)
      if (rest.length === maxParts) rest = [Buffer.concat(rest)]
      held += bytes.length
      if (held > limit) throw new OversizedLineError(limit)
      continue
    }
    const whole = bytes.subarray(0, end)
    yield held > 0 ? Buffer.concat([...rest, whole]) : whole
    held = bytes.length - end
    rest = held > 0 ? [bytes.subarray(end)] : []
  }
}

/** The lines of a chunk, without their newlines; empty lines are skipped. */
export function* linesOf(chunk: Buffer): Generator<Buffer> {
  let start = 0
  while (start < chunk.length) {
    let end = chunk.indexOf(0x0a, start)
    if (end < 0) end = chunk.length
    if (end > start) yield chunk.subarray(start, end)
    start = end + 1
  }
}

/**
 * The events of a chunk as SSE frames, each with its own number after `prefix`. Empty when there is nothing to show. The vendor's conversation
 * handle appears only in the raw log. Specification 2.8.
 */
export function runFrames(chunk: LogChunk, prefix = ''): string {
  let frames = ''
  let seq = chunk.firstSeq
  for (const line of linesOf(chunk.lines)) {
    const type = peekType(line)
    if (type !== undefined && type !== 'session_init')
      frames += sseFrame(type, line.toString('utf8'), `${prefix}${seq}`)
    seq++
  }
  return frames
}

/** One SSE frame. `data` is JSON text, which is always one line, because JSON escapes CR and LF. */
export const sseFrame = (event: string, data: string, id?: number | string): string =>
  id === undefined ? `event: ${event}\ndata: ${data}\n\n` : `id: ${id}\nevent: ${event}\ndata: ${data}\n\n`

/** The sequence number of a `Last-Event-ID` header. Any other value means the beginning. */
export function lastEventId(request: FastifyRequest): number {
  const header = request.headers['last-event-id']
  const value = typeof header === 'string' && /^\d{1,15}$/.test(header) ? Number(header) : 0
  return Number.isSafeInteger(value) ? value : 0
}
