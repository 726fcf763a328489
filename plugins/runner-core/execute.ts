import { setTimeout as sleep } from 'node:timers/promises'
import { type AppError, isAppError } from '#kernel'
import type { RuntimeEvent } from '#contracts/run-event'
import type { ExecuteRun } from '#contracts/runner'
import type { SidecarLink } from '#contracts/sidecar'
import type { PreparedRun } from '#contracts/workers'
import { envelopeOf } from './envelope.ts'
import { type EndReason, sentences } from './errors.ts'
import type { Prepare } from './links.ts'
import { createRelay } from './relay.ts'
import type { Held } from './sessions.ts'

/** What the sidecar gets above its own deadline to end the run itself, with the partial turn committed. */
const graceMs = 3_000
/** How long a sidecar may take to unwind a turn that was aborted, before its session is free again. */
const unwindMs = 1_000
/** How long a sidecar that should hold a conversation may take to say that it does not. It answers before it calls a model. */
const stateMissingMs = 1_000
/** How long a sidecar may refuse a session because it is still leaving the former run, or be away because it is being restarted. */
const busyMs = 3_000
const busyRetryMs = 25
/** Nothing of the turn was begun, and soon it may be. */
const passes = (error: unknown): boolean =>
  isAppError(error) && (error.code === 'session_busy' || (error.code === 'sidecar_unreachable' && error.retryable))

/** One run under way. */
export interface Turn {
  readonly session: Held
  readonly signal: AbortSignal
  readonly attempt: number
  /** How many delegations led to the run. */
  readonly depth: number
  /** Puts an event between the sidecar's own, as soon as it can be read; too late for a run that is over. */
  report(event: RuntimeEvent): void
  /** Ends the run for this reason; the first one counts. */
  end(reason: EndReason): void
  /** Ends it and frees its session at once, even if nobody reads its end. */
  supersede(): void
  /** Resolves when nothing of the run is left. */
  readonly over: Promise<void>
}

export interface TurnOptions {
  readonly session: Held
  readonly run: ExecuteRun
  /** Absent: nothing has to be made ready. */
  readonly prepare?: Prepare
  /** Chosen before the run starts, so that a missing sidecar is an `error` event of the run as well. */
  readonly sidecar: () => SidecarLink
  readonly sessionMcpUrl: string | undefined
  /** The session is free: called once, before the terminal line can be seen. */
  readonly onFree: (status: 'idle' | 'errored') => void
  /** The sidecar lost the session's conversation: lets go of the session and returns what to answer. */
  readonly onStateMissing: () => AppError
  readonly log: { warn(fields: object, message: string): void }
}

export interface StartedTurn extends Turn {
  readonly chunks: AsyncGenerator<Buffer>
}

/**
 * Runs one turn on a sidecar. The promises kept here, whatever the sidecar does: the first line is ours, stamps are
 * consecutive, the stream ends with exactly one `result` or `error`, and it ends soon after the deadline or an abort.
 */
export function startTurn(options: TurnOptions): StartedTurn {
  const { session, run, sidecar, sessionMcpUrl, onFree, log } = options
  const abort = new AbortController()
  let reason: EndReason | undefined
  let wake: (() => void) | undefined
  let finished: (() => void) | undefined
  /** What tools report, until its turn among the lines has come. */
  const reported: RuntimeEvent[] = []
  let free = false
  const over = new Promise<void>((resolve) => {
    finished = resolve
  })
  const release = (terminal: 'result' | 'error'): void => {
    if (free) return
    free = true
    clearTimeout(deadline)
    onFree(terminal === 'result' ? 'idle' : 'errored')
  }
  const end = (why: EndReason): void => {
    if (free || reason) return
    reason = why
    abort.abort(new Error(sentences[why]))
    wake?.()
  }
  const deadline = setTimeout(end, Math.min(run.timeoutMs + graceMs, 2 ** 31 - 1), 'timeout')
  const relay = createRelay(run.runId, session.id, run.firstSeq, {
    onHandle(handle) {
      session.runtimeSessionId = handle
    },
    onEnd: release,
    distrusted: session.profile.workerMode === 'sandbox',
  })
  const takenAt = Date.now()
  const report = (event: RuntimeEvent): void => {
    if (free || reason) return
    reported.push(event)
    wake?.()
  }
  /**
   * What is waited for, or undefined as soon as the turn is ended from here or something is reported: whoever is asked may
   * ignore the signal.
   */
  const unlessEnded = <T>(ask: () => Promise<T>): Promise<T | undefined> =>
    new Promise((resolve, reject) => {
      if (reason) return resolve(undefined)
      wake = () => resolve(undefined)
      ask().then(resolve, reject)
    })
  let coming: Promise<IteratorResult<Buffer>> | undefined
  const nextOf = async (source: AsyncIterator<Buffer>): Promise<IteratorResult<Buffer> | undefined> => {
    const asked = (coming ??= source.next())
    let pending = false
    try {
      const read = await unlessEnded(() => asked)
      pending = read === undefined
      return read
    } finally {
      if (!pending) coming = undefined
    }
  }

  async function* chunks(): AsyncGenerator<Buffer> {
    let source: AsyncIterator<Buffer> | undefined
    let askedAt = Infinity
    let prepared: PreparedRun | undefined
    let left = false
    const makeReady = async (prepare: Prepare): Promise<Buffer | undefined> => {
      const preparing = prepare(session.conversation === true, abort.signal)
      preparing.then(
        (ready) => {
          // Too late for a turn that has ended meanwhile.
          if (left) ready?.over()
          else prepared = ready
        },
        () => {},
      )
      const ready = await unlessEnded(() => preparing)
      return ready && relay.own(ready.event)
    }
    /** Starts the sidecar's turn. It may still be leaving the session's former run, if that one was cut off from here. */
    const open = async (): Promise<IteratorResult<Buffer> | undefined> => {
      const until = Date.now() + busyMs
      const elapsedMs = Date.now() - takenAt
      const envelope = envelopeOf(session, run, { firstSeq: relay.next, elapsedMs, sessionMcpUrl })
      for (;;) {
        if (reason) return undefined
        source = sidecar().run(envelope, abort.signal)[Symbol.asyncIterator]()
        askedAt = Date.now()
        try {
          return await nextOf(source)
        } catch (error) {
          if (!passes(error) || Date.now() > until) throw error
        }
        askedAt = Infinity
        await sleep(busyRetryMs)
      }
    }
    try {
      const accepted = relay.own({ type: 'progress', stage: 'runner_accepted' })
      // Started before our own lines are read, so that the sidecar works meanwhile.
      const ready = options.prepare && makeReady(options.prepare)
      const first = ready ? ready.then(open) : open()
      // Whatever becomes of a turn that the sidecar took, the conversation is another one afterwards.
      first.then(
        () => session.changes++,
        () => {},
      )
      if (session.conversation) await stateMissing(first, () => askedAt)
      yield accepted
      let failure: unknown
      try {
        const told = await ready
        if (told) yield told
        for (let read = await first; read ? !read.done : !reason; read = await nextOf(source!)) {
          for (const event of reported.splice(0)) yield relay.insert(event)
          if (!read) continue
          const chunk = relay.pass(read.value)
          if (relay.endedBy === 'runner') abort.abort(new Error(sentences.bad_event))
          if (chunk.length > 0) yield chunk
          if (relay.endedBy) return
        }
      } catch (error) {
        failure = error
      }
      if (relay.endedBy) return
      if (failure !== undefined && !reason) yield endOf(failure)
      else yield relay.end(reason ?? 'sidecar_lost')
    } finally {
      if (relay.endedBy === 'sidecar') session.conversation = true
      // Left early: whoever read this is gone, and the sidecar must not go on for nobody.
      if (!relay.endedBy) end('cancelled')
      release('error')
      if (source) await unwind(source, abort, relay.endedBy === 'sidecar')
      left = true
      prepared?.over()
      finished!()
    }
  }
  /** Rejects when the conversation is known to be lost; nothing of the run has been seen by then, so it can be tried again. */
  const stateMissing = (first: Promise<unknown>, askedAt: () => number): Promise<void> =>
    new Promise((resolve, reject) => {
      const look = (): void => {
        // One that takes the turn only now has its time from now on.
        const left = Math.min(stateMissingMs, askedAt() + stateMissingMs - Date.now())
        if (left <= 0) return resolve()
        late = setTimeout(look, left)
      }
      let late = setTimeout(look, stateMissingMs)
      const settled = (error?: unknown): void => {
        clearTimeout(late)
        if (isAppError(error) && error.code === 'session_state_missing') reject(options.onStateMissing())
        else resolve()
      }
      first.then(() => settled(), settled)
    })
  const endOf = (failure: unknown): Buffer => {
    if (isAppError(failure)) {
      return relay.fail(failure.code, failure.sentence ?? sentences.sidecar_lost, failure.retryable)
    }
    if (failure instanceof Error && failure.name === 'OversizedLineError') return relay.end('bad_event')
    log.warn({ err: failure, runId: run.runId }, 'a sidecar stream failed')
    return relay.end('sidecar_lost')
  }
  const supersede = (): void => {
    end('cancelled')
    release('error')
  }
  return {
    session,
    signal: abort.signal,
    attempt: run.attempt ?? 1,
    depth: run.depth ?? 0,
    report,
    end,
    supersede,
    over,
    chunks: chunks(),
  }
}

/**
 * Leaves a sidecar's stream. After its own terminal line it is read to its end, which keeps its connection for the next
 * run. A sidecar that takes longer than `unwindMs` is left to its aborted signal.
 */
async function unwind(source: AsyncIterator<Buffer>, abort: AbortController, toItsEnd: boolean): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(() => {
      abort.abort(new Error('the sidecar did not end its stream'))
      resolve()
    }, unwindMs)
  })
  const leave = async (): Promise<void> => {
    let over = !toItsEnd
    while (!over) over = (await source.next()).done === true
    await source.return?.()
  }
  await Promise.race([leave().catch(() => {}), late])
  clearTimeout(timer)
}
