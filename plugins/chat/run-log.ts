import type { LogChunk } from '#contracts/runs'
import { encodeFrames, lastSeqOf } from './frames.ts'

/** What a watched run keeps in memory for clients that are a little behind; older events are read again from the conductor. */
const keptBytes = 256 * 1024
/** Frames that leave in one write. */
const pieceLength = 64 * 1024

/** Tells a client that the stream ended here and not the run: it resumes with `Last-Event-ID`. */
export const closing = ': closing\n\n'

/** The events of one run as its clients see them: encoded when the first of them asks, and followed by any number of cursors. */
export interface RunLog {
  readonly lastSeq: number
  append(chunk: LogChunk): void
  /** The run ended: `frame` is the last one, and every client gets it. */
  end(frame: string): void
  /** This process stops following; the run goes on. */
  detach(): void
  /** Frames after `afterSeq`, then those to come. Ends after the terminal frame. */
  follow(afterSeq: number, signal: AbortSignal): AsyncGenerator<string>
}

/** Events of the run after a seq, from whoever holds all of them. */
export type ReadArchive = (afterSeq: number, signal: AbortSignal) => AsyncIterable<LogChunk>

interface Entry {
  readonly chunk: LogChunk
  readonly lastSeq: number
  frames: string | undefined
}

export function createRunLog(exposeToolEvents: boolean, archive: ReadArchive, kept = keptBytes): RunLog {
  const entries: Entry[] = []
  const waiting = new Set<() => void>()
  let size = 0
  let lastSeq = 0
  let ended: { readonly frame: string } | undefined

  const wake = (): void => {
    for (const resume of waiting) resume()
  }
  /** Index of the first entry that reaches behind `seq`. */
  const find = (seq: number): number => {
    let low = 0
    let high = entries.length
    while (low < high) {
      const middle = (low + high) >> 1
      if (entries[middle]!.lastSeq > seq) high = middle
      else low = middle + 1
    }
    return low
  }
  const framesOf = (entry: Entry): string => (entry.frames ??= encodeFrames(entry.chunk, 0, exposeToolEvents))

  /** What is in memory after `cursor`, up to a piece, and where that leaves the cursor. */
  const read = (cursor: number): { frames: string; cursor: number } => {
    let frames = ''
    for (let i = find(cursor); i < entries.length && frames.length < pieceLength; i++) {
      const entry = entries[i]!
      // Only a client that resumes begins inside a chunk.
      frames += entry.chunk.firstSeq > cursor ? framesOf(entry) : encodeFrames(entry.chunk, cursor, exposeToolEvents)
      cursor = entry.lastSeq
    }
    return { frames, cursor }
  }
  const isGone = (cursor: number): boolean => entries.length > 0 && entries[0]!.chunk.firstSeq > cursor + 1

  return {
    get lastSeq() {
      return lastSeq
    },
    append(chunk) {
      if (ended || chunk.count === 0) return
      lastSeq = lastSeqOf(chunk)
      entries.push({ chunk, lastSeq, frames: undefined })
      size += chunk.lines.length
      let gone = 0
      for (; size > kept && gone < entries.length - 1; gone++) size -= entries[gone]!.chunk.lines.length
      if (gone > 0) entries.splice(0, gone)
      wake()
    },
    end(frame) {
      ended ??= { frame }
      wake()
    },
    detach() {
      ended ??= { frame: closing }
      wake()
    },
    async *follow(afterSeq, signal) {
      let cursor = afterSeq
      let resume = (): void => {}
      const onWake = (): void => resume()
      waiting.add(onWake)
      signal.addEventListener('abort', onWake)
      try {
        while (!signal.aborted) {
          if (isGone(cursor)) {
            // A slow reader: it pulls at its own pace until what it needs next is in memory.
            const before = cursor
            for await (const chunk of archive(cursor, signal)) {
              const frames = encodeFrames(chunk, cursor, exposeToolEvents)
              cursor = Math.max(cursor, lastSeqOf(chunk))
              if (frames !== '') yield frames
              if (!isGone(cursor)) break
            }
            if (cursor > before) continue
            // Nobody has these events now; the client may ask again.
            yield closing
            return
          }
          const next = read(cursor)
          if (next.cursor > cursor) {
            cursor = next.cursor
            if (next.frames !== '') yield next.frames
          } else if (ended) {
            yield ended.frame
            return
          } else {
            await new Promise<void>((resolve) => {
              resume = resolve
            })
          }
        }
        if (signal.reason === 'shutdown') yield closing
      } finally {
        waiting.delete(onWake)
        signal.removeEventListener('abort', onWake)
      }
    },
  }
}
