import { AppError, isAppError, unavailable } from '#kernel'
import { isClientId, newId, newSessionId } from '#contracts/ids'
import { isProfileName, type PlacedProfile, type Profiles } from '#contracts/profiles'
import { createOutputSchemas } from '#contracts/output-schema'
import { isBase64, maxAttachmentChars } from '#contracts/prompt'
import type { EnqueueRun, Orphan, RunStore, StartOutcome } from '#contracts/run-store'
import type { RunnerLink, RunnerPool } from '#contracts/runner'
import type { RunAccepted, RunSummary, Task } from '#contracts/runs'
import { restoredFromLog } from '#contracts/runtime'
import type { Webhooks } from '#contracts/webhooks'
import { within } from './ending.ts'
import {
  attachmentsTooLarge,
  conversationBusy,
  conversationEnded,
  conversationNotFound,
  invalidAttachment,
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
import type { Run, RunOrder } from './run.ts'
import { placementOf } from './runner-stream.ts'

/** How long a start waits to hear that a runner has the run, before it answers that it is accepted. */
const takenWaitMs = 2_000
/** The same while the session is being restored: a failure of that is told with its own status. Specification 4.8, rule 3. */
const restoredWaitMs = 20_000
/** What the end of a run takes, and more. */
const lookAgainMs = 100

export interface SubmissionDeps {
  readonly store: RunStore
  readonly profiles: Profiles
  readonly runners: RunnerPool
  readonly webhooks: Webhooks | undefined
  readonly local: (tenantId: string, runId: string) => Run | undefined
  /** Executes a claimed run in this process. */
  readonly begin: (
    claimed: Pick<Orphan, 'claim' | 'session'>,
    task: Task,
    more?: Pick<RunOrder, 'placed' | 'remembers'>,
  ) => Run
  /** Looks whether the next run of a session can begin. */
  readonly advance: (tenantId: string, sessionId: string) => void
}

/**
 * Starts a run, and resolves once a runner has it. A run of this id and the same task is a repeated call and is joined; of
 * another task it is 409 `conflict`. A 503 has begun nothing, and the same call may be made again.
 */
export type Submit = (tenantId: string, task: Task) => Promise<RunAccepted>

export function createSubmission(deps: SubmissionDeps): Submit {
  const { store, runners } = deps
  const schemas = createOutputSchemas()

  const profileOf = async (tenantId: string, name: string, fresh = false): Promise<PlacedProfile> => {
    const placed = isProfileName(name) ? await deps.profiles.findPlaced(tenantId, name, fresh) : undefined
    if (!placed) throw unknownProfile(name)
    return placed
  }
  /** A task that could never run is the client's mistake, whatever else is wrong with it. */
  const refusal = async (tenantId: string, { profile }: Task, error: AppError): Promise<AppError> => {
    await profileOf(tenantId, profile)
    return error
  }
  /** The runner for a new session, or why there is none. */
  const placeOr = (profile: PlacedProfile['profile']): RunnerLink | AppError => {
    try {
      return runners.place(placementOf(profile))
    } catch (error) {
      if (isAppError(error)) return error
      throw error
    }
  }
  const taken = async (run: Run): Promise<RunAccepted> => {
    const until = Date.now() + restoredWaitMs
    while (!(await within(run.dispatched, takenWaitMs))) if (!run.restoring || Date.now() > until) break
    const failure = await Promise.race([run.dispatched, undefined])
    if (failure) throw new AppError(failure.code, 503, { message: failure.message, retryable: true, cause: failure })
    run.announce()
    const { runId, sessionId } = run.claim
    return { runId, sessionId, status: 'running' }
  }
  const join = async (tenantId: string, run: RunSummary, task: Task): Promise<RunAccepted> => {
    const same =
      run.subTask.profile === task.profile &&
      run.subTask.prompt === task.prompt.replaceAll('\0', '\uFFFD') &&
      (task.sessionId === undefined || task.sessionId === run.sessionId)
    if (!same) throw runExists()
    const here = deps.local(tenantId, run.runId)
    if (here) return taken(here)
    return { runId: run.runId, sessionId: run.sessionId, status: run.status }
  }

  /** In a new session, which takes the place of `insteadOf` where the conversation of a chat goes on in it. */
  const startNew = async (tenantId: string, runId: string, task: Task, insteadOf?: string): Promise<RunAccepted> => {
    const remembers = task.chat?.continued ?? false
    let placed = await profileOf(tenantId, task.profile)
    // 32 random bits per runner: a session id that is in use is drawn again.
    for (let attempt = 0; attempt < 5; attempt++) {
      const { profile, revision } = placed
      const runner = remembers && !restoredFromLog(profile.runtime) ? conversationEnded() : placeOr(profile)
      if (runner instanceof AppError) {
        // What refuses it may be a profile from memory that has changed since.
        const now = await profileOf(tenantId, task.profile, true)
        if (now.revision === revision) throw runner
        placed = now
        continue
      }
      const sessionId = newSessionId(runner.hash)
      const create = { profile, revision, ...(insteadOf === undefined ? {} : { insteadOf }) }
      const outcome = await store.start({ tenantId, runId, sessionId, task, create })
      if (outcome.kind === 'started') return taken(deps.begin(outcome, task, { placed: runner, remembers }))
      if (outcome.kind === 'exists') return join(tenantId, outcome.run, task)
      if (outcome.kind === 'no_conversation') throw conversationNotFound()
      if (outcome.kind === 'stale_profile') placed = await profileOf(tenantId, task.profile, true)
      else if (task.chat) throw conversationBusy()
    }
    throw unavailable({ message: 'No session could be created; try again.', retryable: true })
  }
  /** In the session of its conversation, or in a new one that is given the conversation when that is gone. */
  const continueChat = async (tenantId: string, runId: string, task: Task): Promise<RunAccepted> => {
    const outcome = await store.start({ tenantId, runId, sessionId: '', task })
    if (outcome.kind === 'started') return taken(deps.begin(outcome, task))
    if (outcome.kind === 'exists') return join(tenantId, outcome.run, task)
    if (outcome.kind === 'no_conversation') throw conversationNotFound()
    if (outcome.kind !== 'no_session' && outcome.kind !== 'other_profile') throw conversationBusy()
    return startNew(tenantId, runId, task, outcome.sessionId)
  }
  const enqueue = async (run: EnqueueRun): Promise<RunAccepted> => {
    const { tenantId, runId, sessionId, task } = run
    const outcome = await store.enqueue(run)
    if (outcome.kind === 'exists') return join(tenantId, outcome.run, task)
    if (outcome.kind === 'full') throw queueFull()
    if (outcome.kind !== 'queued') throw await unusable(tenantId, task, outcome)
    // The session may have become free since it was found busy. A run whose end was under way just then has not seen the line,
    // and may not have been seen to be over: one more look is sooner than the next sweep.
    deps.advance(tenantId, sessionId)
    setTimeout(deps.advance, lookAgainMs, tenantId, sessionId).unref()
    return { runId, sessionId, status: 'queued' }
  }
  const unusable = (tenantId: string, task: Task, { kind }: Pick<StartOutcome, 'kind'>): Promise<AppError> =>
    refusal(tenantId, task, kind === 'other_profile' ? profileMismatch() : unknownSession())
  const startIn = async (tenantId: string, runId: string, sessionId: string, task: Task): Promise<RunAccepted> => {
    const outcome = await store.start({ tenantId, runId, sessionId, task })
    if (outcome.kind === 'started') return taken(deps.begin(outcome, task))
    if (outcome.kind === 'exists') return join(tenantId, outcome.run, task)
    if (outcome.kind !== 'busy') throw await unusable(tenantId, task, outcome)
    const { whenBusy } = task
    if (whenBusy !== 'enqueue' && whenBusy !== 'interrupt') throw sessionBusy()
    return enqueue({ tenantId, runId, sessionId, task, interrupt: whenBusy === 'interrupt' })
  }
  /** Refuses what would only fail once a model is called. */
  const checkPrompt = async ({ attachments = [], responseFormat }: Task): Promise<void> => {
    if (attachments.reduce((sum, { data }) => sum + data.length, 0) > maxAttachmentChars) throw attachmentsTooLarge()
    for (const [i, { data }] of attachments.entries()) if (!isBase64(data)) throw invalidAttachment(i)
    if (responseFormat) schemas(responseFormat.schema)
  }
  return async (tenantId, task) => {
    const { id: runId = newId('run'), sessionId, chat, webhook } = task
    if (!isClientId(runId)) throw invalidRunId()
    if (sessionId !== undefined && !isClientId(sessionId)) throw invalidSessionId()
    await checkPrompt(task)
    // An agent's was checked when it was published: a chat does not fail for its webhook.
    if (webhook && !chat) {
      if (!deps.webhooks) throw webhooksUnavailable()
      deps.webhooks.check(webhook.url)
    }
    if (chat?.continued) return continueChat(tenantId, runId, task)
    return sessionId === undefined ? startNew(tenantId, runId, task) : startIn(tenantId, runId, sessionId, task)
  }
}
