import type { LogChunk, RunStatus } from '#contracts/runs'
import { after, lastSeqOf } from '#contracts/log-chunk'

/** What a run under way keeps in memory of what is stored already: for whoever comes next, and as long as a watcher is behind. */
const keptBytes = 32 * 1024
const mostBytes = 1024 * 1024
/** The objects around a chunk: a delta alone is smaller than they are. */
const chunkOverhead = 400
const weightOf = ({ lines }: LogChunk): number => lines.length + chunkOverhead

export type ReadStored = (afterSeq: number) => Promise<{ chunks: LogChunk[]; status: RunStatus } | undefined>

/** The live log of one run: chunks as they came, followed by any number of cursors. A slow watcher costs nothing. */
export interface RunLog {
  readonly lastSeq: number
  append(chunk: LogChunk): void
  /** Everything up to `seq` is durable: older chunks may leave memory. */
  stored(seq: number): void
  /** The log begins behind `seq`: what is before is in the store. Before anything is appended. */
  resume(seq: number): void
  /** The last chunk was the terminal one. */
  end(): void
  /** The run was taken from this process: what follows the durable part is in the store. */
  detach(): void
  follow(afterSeq: number, signal: AbortSignal): AsyncGenerator<LogChunk>
}

interface Watcher {
  cursor: number
  wake(): void
}

export function createRunLog(readStored: ReadStored, most = mostBytes): RunLog {
  const kept = Math.min(keptBytes, most)
  let held: LogChunk[] = []
  let heldBytes = 0
  let storedSeq = 0
  let lastSeq = 0
  let state: 'open' | 'ended' | 'detached' = 'open'
  let durableSeq = 0
  const watchers = new Set<Watcher>()
  const wake = (): void => {
    for (const watcher of watchers) watcher.wake()
  }
  const slowest = (): number => {
    let seq = Infinity
    for (const { cursor } of watchers) seq = Math.min(seq, cursor)
    return seq
  }
  const trim = (): void => {
    if (heldBytes <= kept) return
    const seen = slowest()
    let gone = 0
    while (gone < held.length) {
      const chunk = held[gone]!
      const last = lastSeqOf(chunk)
      if (heldBytes <= (last <= seen ? kept : most) || last > storedSeq) break
      heldBytes -= weightOf(chunk)
      gone++
    }
    if (gone > 0) held = held.slice(gone)
  }
  /** The first held chunk that reaches behind `seq`. */
  const find = (seq: number): LogChunk | undefined => {
    let low = 0
    let high = held.length
    while (low < high) {
      const middle = (low + high) >> 1
      if (lastSeqOf(held[middle]!) > seq) high = middle
      else low = middle + 1
    }
    return held[low]
  }
  return {
    get lastSeq() {
      return lastSeq
    },
    append(chunk) {
      held.push(chunk)
      heldBytes += weightOf(chunk)
      lastSeq = lastSeqOf(chunk)
      trim()
      wake()
    },
    stored(seq) {
      storedSeq = Math.max(storedSeq, seq)
      trim()
    },
    resume(seq) {
      lastSeq = storedSeq = seq
      wake()
    },
    end() {
      state = 'ended'
      wake()
    },
    detach() {
      durableSeq = storedSeq
      state = 'detached'
      wake()
    },
    async *follow(afterSeq, signal) {
      let rewound = false
      let resume: (() => void) | undefined
      const poke = (): void => resume?.()
      const watcher: Watcher = { cursor: afterSeq, wake: poke }
      watchers.add(watcher)
      signal.addEventListener('abort', poke)
      try {
        while (!signal.aborted) {
          const oldest = held[0]?.firstSeq ?? lastSeq + 1
          if (state === 'detached' || watcher.cursor + 1 < oldest) {
            if (state === 'detached' && !rewound) {
              // A watcher may have seen events that were not stored when the run was taken: the store has the truth.
              watcher.cursor = Math.min(watcher.cursor, durableSeq)
              rewound = true
            }
            const page = await readStored(watcher.cursor)
            if (!page) return
            let moved = false
            for (const chunk of page.chunks) {
              const part = after(chunk, watcher.cursor)
              if (!part) continue
              moved = true
              watcher.cursor = lastSeqOf(part)
              yield part
            }
            if (!moved) return
            continue
          }
          const chunk = find(watcher.cursor)
          const part = chunk && after(chunk, watcher.cursor)
          if (part) {
            watcher.cursor = lastSeqOf(part)
            yield part
            continue
          }
          if (state === 'ended') return
          await new Promise<void>((resolve) => {
            resume = resolve
          })
          resume = undefined
        }
      } finally {
        watchers.delete(watcher)
        signal.removeEventListener('abort', poke)
      }
    },
  }
}
