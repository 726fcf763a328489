/** What a hop may hold of a stream that its reader does not take: then the writer waits. */
const highWater = 256 * 1024

/**
 * Joins a producer of lines to one reader: all lines of one event-loop turn leave as one chunk, and the producer waits
 * while more than 256 KiB are unread. The end of the iteration is the end of the producer.
 */
export interface LineQueue extends AsyncIterable<Buffer> {
  /** Adds a whole line (with its newline). Resolves when the queue has room again; a fast path returns undefined. */
  push(line: string): Promise<void> | undefined
  close(error?: unknown): void
}

export function createLineQueue(): LineQueue {
  let parts: string[] = []
  let size = 0
  let closed = false
  let failure: unknown
  let wakeReader: (() => void) | undefined
  let wakeWriter: (() => void) | undefined
  let room: Promise<void> | undefined
  return {
    push(line) {
      if (closed) return undefined
      parts.push(line)
      size += line.length
      wakeReader?.()
      if (size < highWater) return undefined
      return (room ??= new Promise((resolve) => {
        wakeWriter = resolve
      }))
    },
    close(error) {
      closed = true
      failure = error
      wakeReader?.()
      wakeWriter?.()
    },
    async *[Symbol.asyncIterator]() {
      try {
        for (;;) {
          if (parts.length === 0) {
            if (closed) break
            await new Promise<void>((resolve) => {
              wakeReader = resolve
            })
            wakeReader = undefined
            // Let the producer finish its turn, so that its lines leave together.
            if (!closed) await new Promise((resolve) => setImmediate(resolve))
            continue
          }
          const chunk = Buffer.from(parts.length === 1 ? parts[0]! : parts.join(''), 'utf8')
          parts = []
          size = 0
          wakeWriter?.()
          wakeWriter = room = undefined
          yield chunk
        }
        if (failure !== undefined) throw failure
      } finally {
        closed = true
        parts = []
        wakeWriter?.()
      }
    },
  }
}

/** A line longer than this ends the stream that carries it: it is a broken or hostile peer. */
export const maxLineBytes = 4 * 1024 * 1024

export class OversizedLineError extends Error {
  constructor(limit: number = maxLineBytes) {
    super(`a line is longer than ${limit} bytes`)
    this.name = 'OversizedLineError'
  }
}

/**
 * Cuts a byte stream into chunks that end at a newline, copying only what straddles two reads. A last line without its
 * newline is torn: it is dropped, and the reader sees a stream that ended early.
 */
export async function* wholeLines(
  source: AsyncIterable<Uint8Array>,
  limit: number = maxLineBytes,
): AsyncGenerator<Buffer> {
  let rest: Buffer | undefined
  for await (const read of source) {
    const bytes = Buffer.isBuffer(read) ? read : Buffer.from(read.buffer, read.byteOffset, read.byteLength)
    const end = bytes.lastIndexOf(0x0a)
    if (end < 0) {
      rest = rest ? Buffer.concat([rest, bytes]) : bytes
      if (rest.length > limit) throw new OversizedLineError(limit)
      continue
    }
    const whole = bytes.subarray(0, end + 1)
    yield rest ? Buffer.concat([rest, whole]) : whole
    rest = end + 1 < bytes.length ? bytes.subarray(end + 1) : undefined
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
