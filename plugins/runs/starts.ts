import type { AppError } from '#kernel'
import { unavailable } from '#kernel'
import { isClientId, newId, newSessionId } from '#contracts/ids'
import { isProfileName, type Profile, type Profiles, substrateOf } from '#contracts/profiles'
import { createOutputSchemas } from '#contracts/output-schema'
import type { EnqueueRun, Orphan, RunStore } from '#contracts/run-store'
import type { RunnerPool } from '#contracts/runner'
import type { RunAccepted, RunSummary, Task } from '#contracts/runs'
import type { Webhooks } from '#contracts/webhooks'
import {
  invalidRunId,
  invalidSessionId,
  profileMismatch,
  queueFull,
  runExists,
  sessionBusy,
  unknownProfile,
  unknownSession,
  webhooksUnavailable,
} from './errors.ts'
import type { Execution, ExecutionOrder } from './execution.ts'
import { checkPromptParts } from './prompt-parts.ts'
import { within } from './timing.ts'

/** How long a start waits to hear whether the runner still knows the session, before it answers that the run is accepted. */
const dispatchWaitMs = 2_000
/** What the end of a run takes, and more. */
const lookAgainMs = 100

/** The session is there, but no runner could be given it. Specification 4.8, rule 3. */
const unrestored: ReadonlySet<string> = new Set(['hydration_failed', 'no_runner', 'runner_unreachable'])

const unusable = { no_session: unknownSession, other_profile: profileMismatch } as const

/** What placement has to know of a profile beside its runtime: its pool, and where its sandboxes are. */
export function placementOf(profile: Profile) {
  const { placement } = profile
  const substrate = substrateOf(profile)
  return { ...(placement ? { pool: placement } : {}), ...(substrate === undefined ? {} : { substrate }) }
}

export type Begin = (
  claimed: Pick<Orphan, 'claim' | 'session'>,
  task: Task,
  created: boolean,
  route: ExecutionOrder['route'],
) => Execution

export interface StartsDeps {
  readonly store: RunStore
  readonly profiles: Profiles
  readonly runners: RunnerPool
  readonly webhooks: Webhooks | undefined
  readonly begin: Begin
  /** Begins a run in the session that it has claimed, wherever that is at home. */
  readonly resume: (claimed: Pick<Orphan, 'claim' | 'session'>, task: Task) => Execution
  /** Looks whether the next run of a session can begin. */
  readonly advance: (tenantId: string, sessionId: string) => void
}

/** Starts a run. `attach`: a run of this id and the same task is a repeated call and is joined; otherwise 409 `conflict`. */
export type Start = (tenantId: string, task: Task, attach: boolean) => Promise<RunAccepted>

export function createStarts(deps: StartsDeps): Start {
  const { store, runners, begin, resume, advance } = deps
  const schemas = createOutputSchemas()
  const profileOf = async (tenantId: string, name: string): Promise<Profile> => {
    const profile = isProfileName(name) ? await deps.profiles.findPlaced(tenantId, name) : undefined
    if (!profile) throw unknownProfile(name)
    return profile
  }
  const accepted = (runId: string, sessionId: string): RunAccepted => ({ runId, sessionId, status: 'running' })
  const join = (run: RunSummary, task: Task, attach: boolean): RunAccepted => {
    const same =
      run.subTask.profile === task.profile &&
      run.subTask.prompt === task.prompt.replaceAll('\0', '\uFFFD') &&
      (task.sessionId === undefined || task.sessionId === run.sessionId)
    if (!attach || !same) throw runExists()
    return { runId: run.runId, sessionId: run.sessionId, status: run.status }
  }

  const startNew = async (tenantId: string, runId: string, task: Task, attach: boolean): Promise<RunAccepted> => {
    const profile = await profileOf(tenantId, task.profile)
    const order = { runtime: profile.runtime, ...placementOf(profile) }
    const placed = runners.place(order)
    // 32 random bits per runner: a session id that is in use is drawn again.
    for (let attempt = 0; attempt < 5; attempt++) {
      const sessionId = newSessionId(placed.hash)
      const outcome = await store.start({ tenantId, runId, sessionId, task, create: profile })
      if (outcome.kind === 'exists') return join(outcome.run, task, attach)
      if (outcome.kind !== 'started') continue
      begin(outcome, task, true, (without) => (without.size === 0 ? placed : runners.place({ ...order, without })))
      return accepted(runId, sessionId)
    }
    throw unavailable({ message: 'No session could be created; try again.', retryable: true })
  }
  /** Why a session cannot be used, the profile being looked at first: a task that could never run is the client's mistake. */
  const refusal = async (tenantId: string, task: Task, error: AppError): Promise<AppError> => {
    await profileOf(tenantId, task.profile)
    return error
  }
  const wait = async (run: EnqueueRun, attach: boolean): Promise<RunAccepted> => {
    const { tenantId, runId, sessionId, task } = run
    const outcome = await store.enqueue(run)
    if (outcome.kind === 'exists') return join(outcome.run, task, attach)
    if (outcome.kind === 'full') throw queueFull()
    if (outcome.kind !== 'queued') throw await refusal(tenantId, task, unusable[outcome.kind]())
    // The session may have become free since it was found busy. A run whose end was under way just then has not seen the line,
    // and may not have been seen to be over: one more look is sooner than the next sweep.
    advance(tenantId, sessionId)
    setTimeout(advance, lookAgainMs, tenantId, sessionId).unref()
    return { runId, sessionId, status: 'queued' }
  }
  const startIn = async (
    tenantId: string,
    runId: string,
    sessionId: string,
    task: Task,
    attach: boolean,
  ): Promise<RunAccepted> => {
    try {
      runners.home({ sessionId })
    } catch (noRunner) {
      const session = await store.findSession(tenantId, sessionId)
      const known = session !== undefined && session.status !== 'shutdown'
      throw await refusal(tenantId, task, known ? (noRunner as AppError) : unknownSession())
    }
    const outcome = await store.start({ tenantId, runId, sessionId, task })
    if (outcome.kind === 'exists') return join(outcome.run, task, attach)
    if (outcome.kind === 'busy') {
      const { whenBusy } = task
      if (whenBusy !== 'enqueue' && whenBusy !== 'interrupt') throw sessionBusy()
      return wait({ tenantId, runId, sessionId, task, interrupt: whenBusy === 'interrupt' }, attach)
    }
    if (outcome.kind !== 'started') throw await refusal(tenantId, task, unusable[outcome.kind]())
    const run = resume(outcome, task)
    // The specification wants a session that could not be restored answered with 503, not found out from the stream.
    if (await within(run.dispatched, dispatchWaitMs)) {
      const failure = await run.dispatched
      if (failure && unrestored.has(failure.code)) throw failure
    }
    return accepted(runId, sessionId)
  }

  const checkWebhook = (url: string): void => {
    if (!deps.webhooks) throw webhooksUnavailable()
    deps.webhooks.check(url)
  }
  return async (tenantId, task, attach) => {
    const { id: runId = newId('run'), sessionId } = task
    if (!isClientId(runId)) throw invalidRunId()
    if (sessionId !== undefined && !isClientId(sessionId)) throw invalidSessionId()
    checkPromptParts(task, schemas)
    // A gateway's was checked when the agent was published: a chat does not fail for its webhook.
    if (task.webhook && !attach) checkWebhook(task.webhook.url)
    return sessionId === undefined
      ? startNew(tenantId, runId, task, attach)
      : startIn(tenantId, runId, sessionId, task, attach)
  }
}
