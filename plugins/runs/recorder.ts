import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { Claim, FinishRun, RunStore } from '#contracts/run-store'
import type { LogChunk } from '#contracts/runs'
import { join, lastSeqOf } from '#contracts/run-event'
import type { RunLog } from './log.ts'

/** What a killed conductor may lose of what its watchers have seen; never an ending. A model's stream costs ten writes a second. */
const flushAfterMs = 100
/** A flush takes this many events at least, unless they have waited long enough. */
const flushEvents = 64
/** Beyond this the run stops pulling from its runner: the store is slower than the model. */
const unstoredBytes = 256 * 1024
const retryMs = [50, 200, 500, 1_000, 2_000] as const

export interface RecorderDeps {
  readonly store: RunStore
  readonly log: FastifyBaseLogger
  /** Wakes watchers in other processes. */
  readonly announce: (claim: Claim) => void
  /** Aborts when this process ends and must not keep trying. */
  readonly givingUp: AbortSignal
}

/** Makes a run's events durable behind the back of its watchers, and its end before their eyes. */
export interface Recorder {
  /**
   * Shows events to watchers at once and stores them soon, or as soon as may be. Resolves when there is room for more; mostly
   * returns undefined.
   */
  add(chunk: LogChunk, atOnce?: boolean): Promise<void> | undefined
  /** Stores everything so far; with an attempt, that it begins. False: the claim was lost, or the store is given up. */
  flush(attempt?: number): Promise<boolean>
  /** Takes the run back with everything that was stored of it. False: it could not be, and ends like any other. */
  discard(): Promise<boolean>
  /** Stores what is left with the terminal event, in one transaction. False: the claim was lost and nothing was written. */
  finish(end: Omit<FinishRun, 'claim' | 'tail'>, terminal: LogChunk): Promise<boolean>
}

export function createRecorder(deps: RecorderDeps, claim: Claim, log: RunLog, onLost: () => void): Recorder {
  const { store } = deps
  let pending: LogChunk[] = []
  let count = 0
  let bytes = 0
  let inFlight = 0
  let timer: NodeJS.Timeout | undefined
  let flushing: Promise<void> | undefined
  let lost = false
  let hurry = false
  let begun: number | undefined

  /** A store that is away comes back, or takes the lease of this process with it: then `write` answers false. */
  const persistently = async (write: () => Promise<boolean>): Promise<boolean> => {
    for (let attempt = 0; ; attempt++) {
      try {
        return await write()
      } catch (err) {
        if (deps.givingUp.aborted) return false
        if (attempt === 0) deps.log.warn({ err, runId: claim.runId }, 'events could not be stored; trying again')
        const wait = retryMs[Math.min(attempt, retryMs.length - 1)]!
        await sleep(wait, undefined, { signal: deps.givingUp }).catch(() => {})
      }
    }
  }
  const take = (): LogChunk | undefined => {
    const chunk = join(pending)
    pending = []
    count = bytes = 0
    hurry = false
    clearTimeout(timer)
    timer = undefined
    return chunk
  }
  const flush = async (): Promise<void> => {
    const chunk = take()
    if (!chunk || lost) return
    inFlight = chunk.lines.length
    const attempt = begun
    begun = undefined
    const owned = await persistently(() =>
      attempt === undefined ? store.append(claim, chunk) : store.retry(claim, attempt, chunk),
    )
    inFlight = 0
    if (owned) {
      log.stored(lastSeqOf(chunk))
      deps.announce(claim)
    } else {
      lost = true
      onLost()
    }
  }
  const startFlush = (): Promise<void> =>
    (flushing ??= flush().finally(() => {
      flushing = undefined
      schedule()
    }))
  const schedule = (): void => {
    if (flushing || lost || count === 0) return
    if (hurry || count >= flushEvents || bytes >= unstoredBytes) void startFlush()
    else timer ??= setTimeout(startFlush, flushAfterMs)
  }
  const room = async (): Promise<void> => {
    while (!lost && bytes + inFlight >= unstoredBytes) await startFlush()
  }
  return {
    add(chunk, atOnce = false) {
      pending.push(chunk)
      count += chunk.count
      bytes += chunk.lines.length
      log.append(chunk)
      hurry ||= atOnce
      schedule()
      return bytes + inFlight < unstoredBytes ? undefined : room()
    },
    async flush(attempt) {
      begun = attempt
      while (flushing || (count > 0 && !lost)) await startFlush()
      return !lost
    },
    async discard() {
      clearTimeout(timer)
      while (flushing) await flushing
      if (lost) return false
      return store.discard(claim).catch((err: unknown) => {
        deps.log.warn({ err, runId: claim.runId }, 'a refused run could not be taken back')
        return false
      })
    },
    async finish(end, terminal) {
      clearTimeout(timer)
      while (flushing) await flushing
      pending.push(terminal)
      const tail = take()
      if (lost) return false
      const written = await persistently(() => store.finish({ ...end, claim, tail }))
      if (written) deps.announce(claim)
      return written
    },
  }
}
