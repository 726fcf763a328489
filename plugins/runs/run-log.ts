import type { LogChunk, RunStatus } from '#contracts/runs'
import { after, lastSeqOf } from '#contracts/log-chunk'

/** What a run under way keeps in memory of what is stored already, for watchers that are a little behind. */
const keptBytes = 1024 * 1024

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

export function createRunLog(readStored: ReadStored, kept = keptBytes): RunLog {
  let held: LogChunk[] = []
  let heldBytes = 0
  let storedSeq = 0
  let lastSeq = 0
  let state: 'open' | 'ended' | 'detached' = 'open'
  let durableSeq = 0
  const watchers = new Set<() => void>()
  const wake = (): void => {
    for (const watcher of watchers) watcher()
  }
  const trim = (): void => {
    let gone = 0
    while (heldBytes > kept && gone < held.length && lastSeqOf(held[gone]!) <= storedSeq) {
      heldBytes -= held[gone]!.lines.length
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
      heldBytes += chunk.lines.length
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
      let cursor = afterSeq
      let rewound = false
      let resume: (() => void) | undefined
      const poke = (): void => resume?.()
      watchers.add(poke)
      signal.addEventListener('abort', poke)
      try {
        while (!signal.aborted) {
          const oldest = held[0]?.firstSeq ?? lastSeq + 1
          if (state === 'detached' || cursor + 1 < oldest) {
            if (state === 'detached' && !rewound) {
              // A watcher may have seen events that were not stored when the run was taken: the store has the truth.
              cursor = Math.min(cursor, durableSeq)
              rewound = true
            }
            const page = await readStored(cursor)
            if (!page) return
            let moved = false
            for (const chunk of page.chunks) {
              const part = after(chunk, cursor)
              if (!part) continue
              moved = true
              cursor = lastSeqOf(part)
              yield part
            }
            if (!moved) return
            continue
          }
          const chunk = find(cursor)
          const part = chunk && after(chunk, cursor)
          if (part) {
            cursor = lastSeqOf(part)
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
        watchers.delete(poke)
        signal.removeEventListener('abort', poke)
      }
    },
  }
}
