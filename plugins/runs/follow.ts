import type { Kv } from '#contracts/kv'
import type { RunStore } from '#contracts/run-store'
import { isTerminal, type LogChunk } from '#contracts/runs'
import { after, endsLog, lastSeqOf } from '#contracts/log-chunk'
import { unknownRun } from './errors.ts'
import type { RunLog } from './run-log.ts'

/** How often a watcher of another process's run looks, and how often when that process wakes it through Redis. */
const pollMs = 250
const wokenPollMs = 2_000

export const runChannel = (runId: string): string => `run:${runId}`

/** Replays and follows a run that this process does not execute: the store is the truth, a wake-up only hurries. */
export async function* followStored(
  store: RunStore,
  kv: Kv,
  tenantId: string,
  runId: string,
  afterSeq: number,
  signal: AbortSignal,
  begun?: () => RunLog | undefined,
): AsyncGenerator<LogChunk> {
  let cursor = afterSeq
  let wakes = 0
  let resume: (() => void) | undefined
  let left: RunLog | undefined
  const wake = (): void => {
    wakes++
    resume?.()
  }
  const shared = kv.backend === 'redis'
  const unsubscribe = shared ? kv.subscribe(runChannel(runId), wake) : () => {}
  signal.addEventListener('abort', wake)
  try {
    while (!signal.aborted) {
      // It may execute here, or begin to after it waited or was left by another process: what is not stored yet is here.
      const live = begun?.()
      if (live && live !== left) {
        for await (const chunk of live.follow(cursor, signal)) {
          cursor = lastSeqOf(chunk)
          yield chunk
          if (endsLog(chunk)) return
        }
        left = live
        continue
      }
      const before = wakes
      const page = await store.readLog(tenantId, runId, cursor)
      if (!page) throw unknownRun()
      let moved = false
      for (const chunk of page.chunks) {
        const part = after(chunk, cursor)
        if (!part) continue
        moved = true
        cursor = lastSeqOf(part)
        yield part
        if (endsLog(part)) return
      }
      if (moved) continue
      if (isTerminal(page.status)) return
      if (wakes !== before || signal.aborted) continue
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, shared ? wokenPollMs : pollMs)
        resume = () => {
          clearTimeout(timer)
          resolve()
        }
      })
      resume = undefined
    }
  } finally {
    unsubscribe()
    signal.removeEventListener('abort', wake)
  }
}
