import type { Kv } from '#contracts/kv'
import type { RunStore } from '#contracts/run-store'
import { isTerminal, type LogChunk } from '#contracts/runs'
import { after, endsLog, lastSeqOf } from '#contracts/run-event'
import { unknownRun } from './errors.ts'
import type { Cursor, RunLog } from './log.ts'

/** How often the log of another process's run is looked at, and how often when that process wakes its readers. */
const pollMs = 250
const wokenPollMs = 2_000

export const runChannel = (runId: string): string => `run:${runId}`

export interface Logs {
  readonly store: Pick<RunStore, 'readLog' | 'readEnding'>
  readonly kv: Kv
  /** The log of a run that executes in this process, as of now. */
  live(tenantId: string, runId: string): RunLog | undefined
}

/**
 * The one way to read a run: memory where it executes here, the store where it does not, wake-ups in between. Replays behind
 * `afterSeq`, then follows to the terminal event, which is told in any case: a conductor that was killed may have shown
 * events that it had not stored, so the ending can have a number that the reader is already past.
 *
 * Takes hold of a run under way at once, so that its memory serves a reader that pulls later.
 */
export function follow(
  logs: Logs,
  tenantId: string,
  runId: string,
  afterSeq: number,
  signal: AbortSignal,
): AsyncGenerator<LogChunk> {
  return reading(logs, tenantId, runId, afterSeq, signal, logs.live(tenantId, runId))
}

async function* reading(
  logs: Logs,
  tenantId: string,
  runId: string,
  afterSeq: number,
  signal: AbortSignal,
  held: RunLog | undefined,
): AsyncGenerator<LogChunk> {
  const { store, kv } = logs
  const sleep = new Sleep()
  const cursor: Cursor = { seq: afterSeq, wake: () => sleep.end() }
  let live: RunLog | undefined
  let unsubscribe: (() => void) | undefined
  /** Reads in memory from now on, or in the store. */
  const turnTo = (log: RunLog | undefined): void => {
    live?.remove(cursor)
    live = log
    live?.add(cursor)
  }
  signal.addEventListener('abort', cursor.wake)
  try {
    turnTo(held)
    while (!signal.aborted) {
      // It may begin to execute here after it waited, or was left by another process.
      if (!live) turnTo(logs.live(tenantId, runId))
      if (live?.detached) {
        cursor.seq = await whereItGoesOn(logs, tenantId, runId, live, cursor.seq)
        turnTo(undefined)
      }
      const found = live?.read(cursor.seq) ?? 'stored'
      if (found === 'later') {
        await sleep.begin()
        continue
      }
      if (typeof found === 'object') {
        cursor.seq = lastSeqOf(found)
        yield found
        if (endsLog(found)) return
        continue
      }
      if (!live && kv.backend !== 'memory') unsubscribe ??= kv.subscribe(runChannel(runId), cursor.wake)
      sleep.arm()
      const page = await store.readLog(tenantId, runId, cursor.seq)
      if (!page) throw unknownRun()
      let moved = false
      for (const chunk of page.chunks) {
        const part = after(chunk, cursor.seq)
        if (!part) continue
        moved = true
        cursor.seq = lastSeqOf(part)
        yield part
        if (endsLog(part)) return
      }
      if (moved) continue
      if (isTerminal(page.status) || found === 'over') {
        const ending = await store.readEnding(tenantId, runId)
        if (ending) yield ending
        return
      }
      await sleep.begin(live || unsubscribe ? wokenPollMs : pollMs)
    }
  } finally {
    turnTo(undefined)
    unsubscribe?.()
    signal.removeEventListener('abort', cursor.wake)
  }
}

/**
 * A run that was taken from this process goes on behind what was stored of it. A reader may have seen more: it stays where it
 * is when the one who took the run reads on in the same events, and goes back when they are others.
 */
async function whereItGoesOn(logs: Logs, tenantId: string, runId: string, log: RunLog, seq: number): Promise<number> {
  const { storedSeq } = log
  if (seq <= storedSeq) return seq
  const page = await logs.store.readLog(tenantId, runId, storedSeq)
  const [chunk] = page?.chunks ?? []
  const next = chunk && after(chunk, storedSeq)
  if (!next) return seq
  const shown = log.at(storedSeq + 1)
  return shown && next.lines.subarray(0, shown.length).equals(shown) ? seq : storedSeq
}

/** Waits to be woken, for a while or for ever. What wakes between `arm` and `begin` is not missed. */
class Sleep {
  #woken = false
  #resolve: (() => void) | undefined
  arm(): void {
    this.#woken = false
  }
  end(): void {
    this.#woken = true
    this.#resolve?.()
  }
  async begin(ms?: number): Promise<void> {
    if (this.#woken) {
      this.#woken = false
      return
    }
    let timer: NodeJS.Timeout | undefined
    await new Promise<void>((resolve) => {
      this.#resolve = resolve
      if (ms !== undefined) timer = setTimeout(resolve, ms)
    })
    clearTimeout(timer)
    this.#resolve = undefined
    this.#woken = false
  }
}
