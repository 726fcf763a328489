import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { type AppError, isAppError } from '#kernel'
import { hashOfSession } from '#contracts/ids'
import { createEventEncoder } from '#contracts/run-event'
import type { Prices } from '#contracts/prices'
import type { Claim, DurableSession, RunStore } from '#contracts/run-store'
import type { ExecuteRun, RunnerLink } from '#contracts/runner'
import type { LogChunk, SubTask } from '#contracts/runs'
import { hydrationFailed } from './errors.ts'
import { createRecorder, type RecorderDeps } from './recorder.ts'
import { createRunLog, type RunLog } from './run-log.ts'
import { createRunnerEvents, type Ending } from './runner-events.ts'
import { defaultTimeoutSeconds, within } from './timing.ts'

/** Why the conductor itself ends a run. */
export type Stop = Extract<Ending, { code: string }>

export interface Execution {
  readonly claim: Claim
  readonly log: RunLog
  /** Milliseconds of the clock after which the run is stopped as timed out. */
  readonly deadline: number
  /** Resolves once the runner has taken the run, or with the reason why it never will; never rejects. */
  readonly dispatched: Promise<AppError | undefined>
  /** Resolves when the claim is released, durably; never rejects. */
  readonly done: Promise<void>
  /** The runner that took the run, as soon as one has. */
  readonly runner: RunnerLink | undefined
  /** Ends the run for this reason, unless it ends by itself before. The first reason stands. */
  stop(why: Stop): void
  /** Somebody took the claim: do not wait for the runner any longer. Only after `stop`. */
  abandon(): void
}

export interface ExecutionDeps extends RecorderDeps {
  readonly store: RunStore
  /** Undefined: what runs cost is not known, unless their runtime says so. */
  readonly prices: Prices | undefined
  readonly log: FastifyBaseLogger
  readonly deadlineGraceMs: number
  /** How long a stopped runner stream may take to end before the run ends without it. */
  readonly windDownMs: number
}

export interface ExecutionOrder {
  readonly claim: Claim
  readonly task: SubTask
  readonly session: DurableSession
  /** Chooses the runner; asked again, without those named, as long as none has taken the run. Throws `no_runner`. */
  readonly route: (without: ReadonlySet<string>) => RunnerLink
  /** The session is new: its runner creates it with this first run. */
  readonly created: boolean
}

/** The runner certainly did nothing: another one may be asked. */
const tookNothing = (error: AppError): boolean => error.status === 503 && error.retryable

const lostStream: Ending = {
  status: 'error',
  code: 'runner_lost',
  message: 'The runner went away before the run ended.',
}

/** The runner's claim on a session may outlive ours by the time an aborted stream takes to reach it. */
const busyRetryMs = 2_000

/** Runs one claimed run to its end: accepted event, runner stream, terminal event, release. */
export function execute(deps: ExecutionDeps, order: ExecutionOrder): Execution {
  const { claim, session } = order
  const { tenantId, runId, sessionId } = claim
  const log = createRunLog((afterSeq) => deps.store.readLog(tenantId, runId, afterSeq))
  const abort = new AbortController()
  const timeoutMs = (session.profile.limits.timeoutSeconds ?? defaultTimeoutSeconds) * 1_000
  let stopped: Stop | undefined
  let onStopped: (() => void) | undefined
  let abandon: () => void = () => {}
  let onDispatched: (failure: AppError | undefined) => void = () => {}
  const dispatched = new Promise<AppError | undefined>((resolve) => {
    onDispatched = resolve
  })
  const stop = (why: Stop): void => {
    if (stopped || ending) return
    stopped = why
    abort.abort()
    onStopped?.()
  }
  let ending: Ending | undefined
  let runner: RunnerLink | undefined

  const recorder = createRecorder(deps, claim, log, () =>
    stop({ status: 'interrupted', code: 'interrupted', message: 'The run was taken from this server.' }),
  )
  const events = createRunnerEvents(runId, 2, deps.prices)
  const body: ExecuteRun = {
    runId,
    sessionId,
    prompt: order.task.prompt,
    firstSeq: 2,
    timeoutMs,
    ...(order.task.metadata === undefined ? {} : { metadata: order.task.metadata }),
    ...(session.runtimeSessionId === undefined ? {} : { runtimeSessionId: session.runtimeSessionId }),
    ...(order.created ? { create: { profile: session.profile } } : {}),
  }

  /** Any other runner than this one has an old copy of the conversation, or none. */
  const newestAt = session.runner ?? hashOfSession(sessionId)
  const hydrate = async (link: RunnerLink, replace: boolean): Promise<void> => {
    try {
      const bundle = session.stateRev > 0 ? await deps.store.loadState(tenantId, sessionId) : undefined
      await link.hydrate(tenantId, sessionId, session.profile, bundle, replace)
    } catch (cause) {
      if (isAppError(cause) && cause.status < 500) throw cause
      throw hydrationFailed({ cause, retryable: isAppError(cause) && tookNothing(cause) })
    }
  }
  /** The runner's stream; tried again, on another runner if need be, only as long as nothing of it was seen. */
  async function* stream(): AsyncGenerator<Buffer> {
    const tried = new Set<string>()
    const busyUntil = Date.now() + busyRetryMs
    let link = order.route(tried)
    let hydrated = order.created
    for (;;) {
      try {
        if (!hydrated && link.hash !== newestAt) {
          await hydrate(link, true)
          hydrated = true
        }
        for await (const bytes of link.execute(tenantId, body, abort.signal)) {
          runner = link
          yield bytes
        }
        return
      } catch (error) {
        if (runner || abort.signal.aborted || !isAppError(error)) throw error
        if (error.code === 'unknown_session' && !hydrated) {
          await hydrate(link, false)
          hydrated = true
        } else if (error.code === 'session_busy' && Date.now() < busyUntil) {
          await sleep(25, undefined, { signal: abort.signal })
        } else if (tookNothing(error)) {
          link = another(tried.add(link.hash), error)
          hydrated = order.created
        } else throw error
      }
    }
  }
  /** What the first runner said tells more than that there is no second one. */
  const another = (tried: ReadonlySet<string>, error: AppError): RunnerLink => {
    try {
      return order.route(tried)
    } catch {
      throw error
    }
  }
  const consume = async (): Promise<Ending> => {
    let seen = false
    try {
      for await (const bytes of stream()) {
        if (stopped) return stopped
        if (!seen) onDispatched(undefined)
        seen = true
        const read = events.read(bytes)
        const wait = read.passed && recorder.add(read.passed)
        if (read.ending) return (ending = read.ending)
        if (wait) await wait
      }
      return stopped ?? lostStream
    } catch (error) {
      if (stopped) return stopped
      if (isAppError(error) && !seen) {
        onDispatched(error)
        return { status: 'error', code: error.code, message: error.message }
      }
      deps.log.warn({ err: error, runId }, 'the stream of a run broke')
      return lostStream
    }
  }
  /** The runner's end, or the stop's when the runner does not wind down in time. */
  const outcome = (): Promise<Ending> =>
    new Promise((resolve) => {
      const consumed = consume().then(resolve)
      onStopped = () => {
        void within(consumed, deps.windDownMs).then(() => resolve(stopped!))
      }
      abandon = () => {
        if (stopped) resolve(stopped)
      }
      if (stopped) onStopped()
    })

  const run = async (): Promise<void> => {
    const encoder = createEventEncoder(runId, sessionId, 1)
    void recorder.add(line(1, encoder.line({ type: 'progress', stage: 'accepted' })))
    ending = await outcome()
    onDispatched(undefined)
    const last = log.lastSeq + 1
    const terminal = line(last, ending.line ?? errorLine(claim, last, ending as Stop))
    const finished = await recorder.finish(
      {
        status: ending.status,
        sessionStatus: ending.status === 'error' ? 'errored' : 'idle',
        ...(ending.status === 'ok'
          ? { result: ending.result }
          : { error: { code: ending.code, message: ending.message } }),
        ...(events.usage ? { usage: events.usage } : {}),
        toolCalls: events.toolCalls,
        ...(events.runtimeSessionId === undefined ? {} : { runtimeSessionId: events.runtimeSessionId }),
        ...(runner ? { runner: runner.hash } : {}),
      },
      terminal,
    )
    if (!finished) return log.detach()
    log.append(terminal)
    log.end()
  }
  const done = run().catch((err: unknown) => {
    deps.log.error({ err, runId }, 'a run could not be ended')
    log.detach()
  })
  const deadline = Date.now() + timeoutMs + deps.deadlineGraceMs
  return {
    claim,
    log,
    deadline,
    dispatched,
    done,
    get runner() {
      return runner
    },
    stop,
    abandon: () => abandon(),
  }
}

const line = (seq: number, text: string | Buffer): LogChunk => ({
  firstSeq: seq,
  count: 1,
  lines: typeof text === 'string' ? Buffer.from(text) : text,
})

const errorLine = (claim: Claim, seq: number, { code, message }: Stop): string =>
  createEventEncoder(claim.runId, claim.sessionId, seq).line({ type: 'error', code, message })
