import type { FastifyBaseLogger } from 'fastify'
import { type AppError, isAppError, unavailable, unbegun } from '#kernel'
import { isClientId, newId, newSessionId } from '#contracts/ids'
import { isProfileName, type PlacedProfile, type Profiles, restoredFromLog } from '#contracts/profiles'
import { createOutputSchemas } from '#kit/schemas'
import { isBase64, maxAttachmentChars } from '#contracts/prompt'
import { runErrors } from '#contracts/run-errors'
import { interruptedBy, type RunStore, type StartOutcome } from '#contracts/run-store'
import type { Fleet, RunnerLink } from '#contracts/runner'
import { type RunAccepted, type RunSummary, type Task } from '#contracts/runs'
import type { Webhooks } from '#contracts/webhooks'
import type { Cancellation } from './cancellation.ts'
import { within } from './ending.ts'
import type { Executor, Run, RunOrder } from './run.ts'
import { placementOf } from './runner-stream.ts'

const unknownSession = () => runErrors.notFound({ message: 'No such session, or it was shut down.' })

/** How long a start waits to hear that a runner has the run, before it answers that it is accepted. */
const takenWaitMs = 2_000
/** The same while the session is being restored: a failure of that is told with its own status. Specification 4.8, rule 3. */
const restoredWaitMs = 20_000
/** A little longer than the end of a run takes. */
const lookAgainMs = 100

export interface SubmissionDeps {
  readonly store: RunStore
  readonly profiles: Profiles
  readonly runners: Fleet
  readonly webhooks: Webhooks | undefined
  readonly log: FastifyBaseLogger
}

/** One call to start a run. */
interface Asked {
  readonly tenantId: string
  readonly runId: string
  readonly task: Task
}

/** Starts runs: at once, or when those before them in the line of their session have ended. */
export class Submission {
  readonly #deps: SubmissionDeps
  readonly #executor: Executor
  readonly #cancellation: Cancellation
  readonly #schemas = createOutputSchemas()
  /** Sessions whose line is being advanced; true when another call came meanwhile. */
  readonly #looking = new Map<string, boolean>()

  constructor(deps: SubmissionDeps, executor: Executor, cancellation: Cancellation) {
    this.#deps = deps
    this.#executor = executor
    this.#cancellation = cancellation
  }

  /**
   * Starts a run, and resolves once a runner has it. A run of this id and the same task is a repeated call and is joined; of
   * another task it is 409 `conflict`. A 503 has begun nothing, and the same call may be made again.
   */
  async start(tenantId: string, task: Task): Promise<RunAccepted> {
    const { id: runId = newId('run'), sessionId, chat } = task
    if (!isClientId(runId)) throw runErrors.invalidRunId()
    if (sessionId !== undefined && !isClientId(sessionId)) throw runErrors.invalidSessionId()
    await this.#check(tenantId, task)
    const asked = { tenantId, runId, task }
    if (chat?.continued) return this.#continueChat(asked)
    return sessionId === undefined ? this.#startNew(asked) : this.#startIn(asked, sessionId)
  }

  /**
   * Starts the first run in a session's line if the session is free, and frees the session for an interrupt. Called whenever that
   * may be possible, by every conductor; the store lets one of them do it.
   */
  readonly advance = (tenantId: string, sessionId: string): void => {
    const key = `${tenantId}\n${sessionId}`
    if (this.#looking.has(key)) return void this.#looking.set(key, true)
    const round = async (): Promise<void> => {
      do {
        this.#looking.set(key, false)
        await this.#look(tenantId, sessionId)
      } while (this.#looking.get(key))
    }
    round()
      // The sweep of every conductor tries it again.
      .catch((err: unknown) =>
        this.#deps.log.warn({ err, sessionId }, 'the next run of a session could not be started yet'),
      )
      .finally(() => this.#looking.delete(key))
  }

  /** Refuses a task that would only fail when a model is called. */
  async #check(tenantId: string, { attachments = [], responseFormat, webhook, chat }: Task): Promise<void> {
    if (attachments.reduce((sum, { data }) => sum + data.length, 0) > maxAttachmentChars)
      throw runErrors.attachmentsTooLarge()
    for (const [i, { data }] of attachments.entries()) {
      if (!isBase64(data)) throw runErrors.invalidAttachment({ message: `body/attachments/${i}/data is not base64.` })
    }
    if (responseFormat) await this.#schemas(tenantId, responseFormat.schema)
    // The webhook of an agent was checked when it was published: a chat must not fail because of it.
    if (!webhook || chat) return
    if (!this.#deps.webhooks) throw runErrors.webhooksUnavailable()
    this.#deps.webhooks.check(webhook.url)
  }
  /** In a new session, which takes the place of `insteadOf` where the conversation of a chat goes on in it. */
  async #startNew(asked: Asked, insteadOf?: string): Promise<RunAccepted> {
    const { task } = asked
    const remembers = task.chat?.continued ?? false
    let placed = await this.#profileOf(asked)
    // 32 random bits per runner: a session id that is in use is drawn again.
    for (let attempt = 0; attempt < 5; attempt++) {
      const { profile, revision } = placed
      const runner =
        remembers && !restoredFromLog(profile.runtime) ? runErrors.conversationEnded() : this.#placeOr(profile)
      if (runner instanceof Error) {
        // The refusal may be due to a profile from memory that has changed since.
        placed = await this.#profileOf(asked, true)
        if (placed.revision === revision) throw runner
        continue
      }
      const create = { profile, revision, ...(insteadOf === undefined ? {} : { insteadOf }) }
      const outcome = await this.#deps.store.start({ ...asked, sessionId: newSessionId(runner.hash), create })
      const accepted = this.#begun(asked, outcome, { placed: runner, remembers })
      if (accepted) return accepted
      if (outcome.kind === 'stale_profile') placed = await this.#profileOf(asked, true)
      else if (outcome.kind !== 'session_taken') throw runErrors.conversationBusy()
    }
    throw unavailable({ message: 'No session could be created; try again.', retryable: true })
  }
  /** In the session of its conversation, or in a new one that is given the conversation when that is gone. */
  async #continueChat(asked: Asked): Promise<RunAccepted> {
    const outcome = await this.#deps.store.start({ ...asked, sessionId: '' })
    const accepted = this.#begun(asked, outcome)
    if (accepted) return accepted
    if (outcome.kind !== 'no_session' && outcome.kind !== 'other_profile') throw runErrors.conversationBusy()
    return this.#startNew(asked, outcome.sessionId)
  }
  async #startIn(asked: Asked, sessionId: string): Promise<RunAccepted> {
    const { whenBusy } = asked.task
    const outcome = await this.#deps.store.start({ ...asked, sessionId })
    const accepted = this.#begun(asked, outcome)
    if (accepted) return accepted
    if (outcome.kind !== 'busy') throw await this.#unusable(asked, outcome.kind)
    if (whenBusy !== 'enqueue' && whenBusy !== 'interrupt') throw runErrors.sessionBusy()
    return this.#enqueue(asked, sessionId, whenBusy === 'interrupt')
  }
  async #enqueue(asked: Asked, sessionId: string, interrupt: boolean): Promise<RunAccepted> {
    const { tenantId, runId } = asked
    const outcome = await this.#deps.store.enqueue({ ...asked, sessionId, interrupt })
    if (outcome.kind === 'exists') return this.#join(asked, outcome.run)
    if (outcome.kind === 'full') throw runErrors.queueFull()
    if (outcome.kind !== 'queued') throw await this.#unusable(asked, outcome.kind)
    // The session may have become free since it was found busy. A run whose end was under way just then has not seen the line,
    // and may not have been seen to be over: one more look is sooner than the next sweep.
    this.advance(tenantId, sessionId)
    setTimeout(this.advance, lookAgainMs, tenantId, sessionId).unref()
    return { runId, sessionId, status: 'queued' }
  }
  async #look(tenantId: string, sessionId: string): Promise<void> {
    while (this.#executor.takes(sessionId)) {
      const next = await this.#deps.store.claimNext(tenantId, sessionId)
      if (next.kind === 'started') return void this.#executor.begin({ ...next, announced: true })
      if (next.kind === 'none') return
      await this.#cancellation.cancel(tenantId, next.runId, { status: 'cancelled', ...interruptedBy(next.interrupt) })
    }
  }

  /** Undefined: no run was started, and the caller has to say why. */
  #begun(asked: Asked, outcome: StartOutcome, more: Partial<RunOrder> = {}): Promise<RunAccepted> | undefined {
    if (outcome.kind === 'started') return this.#taken(this.#executor.begin({ ...outcome, task: asked.task, ...more }))
    if (outcome.kind === 'exists') return this.#join(asked, outcome.run)
    if (outcome.kind === 'no_conversation') throw runErrors.conversationNotFound()
    if (outcome.kind === 'stale_admission') throw runErrors.admissionStale()
    return undefined
  }
  async #taken(run: Run): Promise<RunAccepted> {
    const until = Date.now() + restoredWaitMs
    while (!(await within(run.dispatched, takenWaitMs))) if (!run.restoring || Date.now() > until) break
    const failure = await Promise.race([run.dispatched, undefined])
    if (failure) throw unbegun(failure)
    run.announce()
    const { runId, sessionId } = run.claim
    return { runId, sessionId, status: 'running' }
  }
  async #join({ tenantId, task }: Asked, run: RunSummary): Promise<RunAccepted> {
    const same =
      run.subTask.profile === task.profile &&
      run.subTask.prompt === task.prompt.replaceAll('\0', '\uFFFD') &&
      (task.sessionId === undefined || task.sessionId === run.sessionId)
    if (!same) throw runErrors.conflict()
    const here = this.#executor.local(tenantId, run.runId)
    return here ? this.#taken(here) : { runId: run.runId, sessionId: run.sessionId, status: run.status }
  }
  async #profileOf({ tenantId, task }: Asked, fresh = false): Promise<PlacedProfile> {
    const name = task.profile
    const placed = isProfileName(name) ? await this.#deps.profiles.findPlaced(tenantId, name, fresh) : undefined
    if (!placed) throw runErrors.unknownProfile({ name })
    return placed
  }
  /** The error for a refused task. A task that could never run is reported first, as the client's mistake. */
  async #unusable(asked: Asked, kind: StartOutcome['kind']): Promise<AppError> {
    await this.#profileOf(asked)
    return kind === 'other_profile' ? runErrors.sessionProfileMismatch() : unknownSession()
  }
  /** The runner for a new session, or why there is none. */
  #placeOr(profile: PlacedProfile['profile']): RunnerLink | AppError {
    try {
      return this.#deps.runners.place(placementOf(profile))
    } catch (error) {
      if (isAppError(error)) return error
      throw error
    }
  }
}
