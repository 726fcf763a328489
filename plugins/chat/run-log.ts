import type { LogChunk } from '#contracts/runs'
import { encodeFrames, lastSeqOf } from './frames.ts'

/** What a watched run keeps in memory: for whoever comes next, and as long as a client is behind; older events are read again from the conductor. */
const keptBytes = 32 * 1024
const mostBytes = 256 * 1024
/** The objects around a chunk and its frames: a delta alone is smaller than they are. */
const chunkOverhead = 600
const weightOf = ({ lines }: LogChunk): number => lines.length + chunkOverhead
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

interface Watcher {
  cursor: number
  wake(): void
}

export function createRunLog(exposeToolEvents: boolean, archive: ReadArchive, most = mostBytes): RunLog {
  const kept = Math.min(keptBytes, most)
  const entries: Entry[] = []
  const watchers = new Set<Watcher>()
  let size = 0
  let lastSeq = 0
  let ended: { readonly frame: string } | undefined

  const wake = (): void => {
    for (const watcher of watchers) watcher.wake()
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
  /** The newest entry stays, whatever its size. */
  const trim = (): void => {
    let seen = Infinity
    for (const { cursor } of watchers) seen = Math.min(seen, cursor)
    let gone = 0
    for (; gone < entries.length - 1; gone++) {
      const entry = entries[gone]!
      if (size <= (entry.lastSeq <= seen ? kept : most)) break
      size -= weightOf(entry.chunk)
    }
    if (gone > 0) entries.splice(0, gone)
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
      size += weightOf(chunk)
      if (size > kept) trim()
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
      let resume = (): void => {}
      const onWake = (): void => resume()
      const watcher: Watcher = { cursor: afterSeq, wake: onWake }
      watchers.add(watcher)
      signal.addEventListener('abort', onWake)
      try {
        while (!signal.aborted) {
          if (isGone(watcher.cursor)) {
            // A slow reader: it pulls at its own pace until what it needs next is in memory.
            const before = watcher.cursor
            for await (const chunk of archive(watcher.cursor, signal)) {
              const frames = encodeFrames(chunk, watcher.cursor, exposeToolEvents)
              watcher.cursor = Math.max(watcher.cursor, lastSeqOf(chunk))
              if (frames !== '') yield frames
              if (!isGone(watcher.cursor)) break
            }
            if (watcher.cursor > before) continue
            // Nobody has these events now; the client may ask again.
            yield closing
            return
          }
          const next = read(watcher.cursor)
          if (next.cursor > watcher.cursor) {
            watcher.cursor = next.cursor
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
        watchers.delete(watcher)
        signal.removeEventListener('abort', onWake)
      }
    },
  }
}
