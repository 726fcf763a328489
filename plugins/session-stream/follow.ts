import type { Kv } from '#contracts/kv'
import { lastSeqOf } from '#contracts/log-chunk'
import type { RunStore } from '#contracts/run-store'
import type { LogChunk, RunDispatch } from '#contracts/runs'
import { sessionChannel } from '#contracts/sessions'
import type { Cursor } from './cursor.ts'

/** How often a stream between two runs looks for the next one, in case nobody woke it. */
const lookMs = 2_000

export interface FollowDeps {
  readonly store: Pick<RunStore, 'runsOfSession'>
  readonly dispatch: Pick<RunDispatch, 'follow'>
  readonly kv: Pick<Kv, 'subscribe'>
}

export interface SessionChunk {
  readonly ordinal: number
  readonly chunk: LogChunk
}

/** The events of a session behind a cursor, run after run, and those to come. Ends behind the last event of a session that was shut down. */
export async function* followSession(
  { store, dispatch, kv }: FollowDeps,
  tenantId: string,
  sessionId: string,
  from: Cursor,
  signal: AbortSignal,
): AsyncGenerator<SessionChunk> {
  // The run of the cursor is read again, behind what was seen of it.
  let done = Math.max(0, from.ordinal - 1)
  let woken = false
  let resume: (() => void) | undefined
  const wake = (): void => {
    woken = true
    resume?.()
  }
  const unsubscribe = kv.subscribe(sessionChannel(tenantId, sessionId), wake)
  signal.addEventListener('abort', wake)
  try {
    while (!signal.aborted) {
      woken = false
      const found = await store.runsOfSession(tenantId, sessionId, done)
      for (const { runId, ordinal } of found?.runs ?? []) {
        const after = ordinal === from.ordinal ? from.seq : 0
        for await (const chunk of dispatch.follow(tenantId, runId, after, signal)) {
          // The ending is told again to whoever is right behind it, and this reader has it.
          if (lastSeqOf(chunk) !== after) yield { ordinal, chunk }
        }
        if (signal.aborted) return
        done = ordinal
      }
      if (found && found.runs.length > 0) continue
      if (!found || found.status === 'shutdown') return
      if (woken) continue
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, lookMs)
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
