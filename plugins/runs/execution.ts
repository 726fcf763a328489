import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { type AppError, isAppError } from '#kernel'
import type { McpServers } from '#contracts/mcp-servers'
import { maxReplayBytes } from '#contracts/replay'
import { promptFieldsOf } from '#contracts/prompt'
import { createEventEncoder } from '#contracts/run-event'
import type { Prices } from '#contracts/prices'
import type { Claim, DurableSession, RunStore } from '#contracts/run-store'
import type { ExecuteRun, RunnerLink } from '#contracts/runner'
import type { Task } from '#contracts/runs'
import { createBudget } from './budget.ts'
import { isLost, policyOf, timeoutMsOf } from './attempts.ts'
import { type ChildRuns, createDelegations, type DelegationLimits } from './delegations.ts'
import { type Past, readPast } from './past.ts'
import { errorLine, line, lostStream, ownerDied, type Stop, toldOf, tooExpensive } from './last-words.ts'
import { createRecorder, type RecorderDeps } from './recorder.ts'
import { createRunLog, type RunLog } from './run-log.ts'
import { createRunMemory, createRunnerEvents, type Ending } from './runner-events.ts'
import { createRunnerStreams } from './runner-stream.ts'
import { within } from './timing.ts'

export interface Execution {
  readonly claim: Claim
  readonly log: RunLog
  /** Milliseconds of the clock after which the run is stopped as timed out. */
  readonly deadline: number
  /** Resolves once the runner has taken the run, or with the reason why it never will; never rejects. */
  readonly dispatched: Promise<AppError | undefined>
  /** Resolves when the claim is released, durably, or is not ours any more: then to false. Never rejects. */
  readonly done: Promise<boolean>
  /** The runner that took the run, as soon as one has. */
  readonly runner: RunnerLink | undefined
  /** Ends the run for this reason, unless it ends by itself before. The first reason stands. */
  stop(why: Stop): void
  /** This process cannot go on. A run that may be tried again is left to another one as it is; any other ends for this reason. */
  leave(why: Stop): void
  /** Somebody took the claim: do not wait for the runner any longer. Only after `stop`. */
  abandon(): void
}

export interface ExecutionDeps extends RecorderDeps {
  readonly store: RunStore
  /** Undefined: what runs cost is not known, unless their runtime says so. */
  readonly prices: Prices | undefined
  /** Undefined: profiles name no MCP servers here. */
  readonly mcpServers: McpServers | undefined
  readonly log: FastifyBaseLogger
  /** Starts and ends the runs that this one delegates to. */
  readonly children: ChildRuns
  readonly delegation: DelegationLimits
  readonly deadlineGraceMs: number
  /** How long a stopped runner stream may take to end before the run ends without it. */
  readonly windDownMs: number
}

export interface ExecutionOrder {
  readonly claim: Claim
  readonly task: Task
  readonly session: DurableSession
  /** Chooses the runner; asked again, without those named, as long as none has taken the run. Throws `no_runner`. */
  readonly route: (without: ReadonlySet<string>) => RunnerLink
  /** The session is new: its runner creates it with this first run. */
  readonly created: boolean
  /** The run was taken over from a dead owner: how often it was begun, and how long ago for the first time. */
  readonly orphan?: { readonly attempt: number; readonly elapsedMs: number }
}

/** How soon a log that cannot be read is tried again. */
const logRetryMs = 500

/** Runs one claimed run to its end: accepted event, runner stream, terminal event, release. */
export function execute(deps: ExecutionDeps, order: ExecutionOrder): Execution {
  const { claim, session } = order
  const { tenantId, runId, sessionId } = claim
  const log = createRunLog((afterSeq) => deps.store.readLog(tenantId, runId, afterSeq))
  const abort = new AbortController()
  const policy = policyOf(session.profile)
  const timeoutMs = timeoutMsOf(session.profile)
  const timesOutAt = Date.now() + timeoutMs - (order.orphan?.elapsedMs ?? 0)
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
  let leaving = false

  const recorder = createRecorder(deps, claim, log, () =>
    stop({ status: 'interrupted', code: 'interrupted', message: 'The run was taken from this server.' }),
  )
  const memory = createRunMemory(deps.prices)
  const limits = [session.profile.limits.maxCostCents, order.task.parent?.budgetCents]
  const budget = createBudget(limits, () => memory.usage?.costCents)
  const depth = order.task.parent?.depth ?? 0
  const delegations = createDelegations(
    deps.children,
    deps.delegation,
    {
      tenantId,
      runId,
      sessionId,
      depth,
      delegates: session.profile.delegates,
      budget,
      onExceeded: () => stop(tooExpensive),
    },
    deps.log,
  )
  const first: ExecuteRun = {
    runId,
    sessionId,
    prompt: order.task.prompt,
    firstSeq: 2,
    timeoutMs,
    ...(depth === 0 ? {} : { depth }),
    ...(order.task.metadata === undefined ? {} : { metadata: order.task.metadata }),
    ...(session.runtimeSessionId === undefined ? {} : { runtimeSessionId: session.runtimeSessionId }),
    ...promptFieldsOf(order.task),
    ...(order.created ? { create: { profile: session.profile } } : {}),
  }

  const streams = createRunnerStreams(deps, order, abort.signal)
  const consume = async (body: ExecuteRun): Promise<{ ending: Ending; refusal?: AppError }> => {
    let seen = false
    const events = createRunnerEvents(runId, body.firstSeq, memory)
    try {
      for await (const bytes of streams.open(body)) {
        if (stopped) return { ending: stopped }
        if (!seen) onDispatched(undefined)
        seen = true
        const read = events.read(bytes)
        if (read.delegates && streams.runner) delegations.look(streams.runner)
        const wait = read.passed && recorder.add(read.passed, read.tools && policy.most > 1)
        if (read.ending) {
          // Nothing that happens from now on changes an end which stands.
          if (policy.most === 1 || !isLost(read.ending)) ending = read.ending
          return { ending: read.ending }
        }
        if (budget.isExceeded()) stop(tooExpensive)
        if (wait) await wait
      }
      return { ending: stopped ?? lostStream }
    } catch (error) {
      if (stopped) return { ending: stopped }
      if (isAppError(error) && !seen) {
        return { ending: { status: 'error', code: error.code, message: error.message }, refusal: error }
      }
      deps.log.warn({ err: error, runId }, 'the stream of a run broke')
      return { ending: lostStream }
    }
  }
  const pause = (ms: number): Promise<unknown> => sleep(ms, undefined, { signal: abort.signal }).catch(() => {})
  const readLog = async (): Promise<Past | undefined> => {
    while (!deps.givingUp.aborted) {
      try {
        return await readPast(deps.store, tenantId, runId)
      } catch (err) {
        deps.log.warn({ err, runId }, 'the log of a run could not be read; trying again')
        await sleep(logRetryMs, undefined, { signal: deps.givingUp }).catch(() => {})
      }
    }
    return undefined
  }
  /** Tells everybody that the run is tried again, and waits. Undefined: it was stopped, or has done too much for another attempt. */
  const begin = async (attempt: number, last: Stop, wait: number): Promise<ExecuteRun | undefined> => {
    const past = (await recorder.flush()) ? await readLog() : undefined
    if (!past || stopped || past.bytes > maxReplayBytes) return undefined
    const { replay, cutFrom, lastSeq } = past
    const told = {
      type: 'progress',
      stage: 'retrying',
      attempt,
      message: `${last.message} Attempt ${attempt} of ${policy.most} follows.`,
      ...(cutFrom === undefined ? {} : { supersedes: cutFrom }),
    } as const
    void recorder.add(line(lastSeq + 1, createEventEncoder(runId, sessionId, lastSeq + 1).line(told)))
    const owned = await recorder.flush(attempt)
    onDispatched(undefined)
    if (owned && wait > 0) await pause(wait)
    if (!owned || stopped) return undefined
    return { ...first, firstSeq: lastSeq + 2, timeoutMs: Math.max(1, timesOutAt - Date.now()), attempt, replay }
  }
  /** All attempts; each but the first goes on behind what is stored of those before it. */
  const attempts = async (): Promise<Ending> => {
    let attempt = order.orphan?.attempt ?? 1
    let last: Ending = ownerDied
    let wait: number | undefined = 0
    if (!order.orphan) {
      const { ending: end, refusal } = await consume(first)
      last = end
      wait = waitAfter(attempt, last)
      if (refusal && wait === undefined) onDispatched(refusal)
    }
    while (wait !== undefined && last.status !== 'ok') {
      const body = await begin(attempt + 1, last, wait)
      if (!body) break
      attempt++
      last = (await consume(body)).ending
      wait = waitAfter(attempt, last)
    }
    return stopped ?? toldOf(last, attempt)
  }
  const waitAfter = (attempt: number, last: Ending): number | undefined =>
    isLost(last) ? policy.waitAfter(attempt, timesOutAt - Date.now()) : undefined
  /** The runner's end, or the stop's when the runner does not wind down in time. */
  const outcome = (): Promise<Ending> =>
    new Promise((resolve, reject) => {
      const consumed = attempts().then(resolve, reject)
      onStopped = () => {
        void within(consumed, deps.windDownMs).then(() => resolve(stopped!))
      }
      abandon = () => {
        if (stopped) resolve(stopped)
      }
      if (stopped) onStopped()
    })

  /** What follows is in the store, and not from here. */
  const left = (): false => {
    log.detach()
    return false
  }
  const run = async (): Promise<boolean> => {
    const encoder = createEventEncoder(runId, sessionId, 1)
    if (order.orphan) {
      const past = await readLog()
      if (!past) return left()
      memory.recall(past)
      log.resume(past.lastSeq)
    } else void recorder.add(line(1, encoder.line({ type: 'progress', stage: 'accepted' })))
    ending = await outcome()
    onDispatched(undefined)
    if (leaving) {
      await recorder.flush()
      return left()
    }
    const last = log.lastSeq + 1
    const terminal = line(last, ending.line ?? errorLine(claim, last, ending as Stop))
    const finished = await recorder.finish(
      {
        status: ending.status,
        sessionStatus: ending.status === 'error' ? 'errored' : 'idle',
        ...(ending.status === 'ok'
          ? { result: ending.result }
          : { error: { code: ending.code, message: ending.message } }),
        ...(memory.usage ? { usage: memory.usage } : {}),
        toolCalls: memory.toolCalls,
        ...(memory.sandbox ? { sandbox: memory.sandbox } : {}),
        ...(memory.runtimeSessionId === undefined ? {} : { runtimeSessionId: memory.runtimeSessionId }),
        ...(streams.runner ? { runner: streams.runner.hash } : {}),
      },
      terminal,
    )
    if (!finished) return left()
    log.append(terminal)
    log.end()
    return true
  }
  const done = run()
    .catch((err: unknown) => {
      deps.log.error({ err, runId }, 'a run could not be ended')
      return left()
    })
    .finally(delegations.close)
  const deadline = timesOutAt + deps.deadlineGraceMs
  return {
    claim,
    log,
    deadline,
    dispatched,
    done,
    get runner() {
      return streams.runner
    },
    stop,
    leave(why) {
      leaving = policy.most > 1 && !stopped && !ending
      stop(why)
      if (leaving) abandon()
    },
    abandon: () => abandon(),
  }
}
