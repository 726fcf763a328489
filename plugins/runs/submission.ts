import { setImmediate as turn } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { type AppError, isAppError, unavailable, unbegun } from '#kernel'
import type { Billing } from '#contracts/billing'
import { isClientId, newId, newSessionId } from '#contracts/ids'
import { isOverLimit, overLimit, type TenantLimits } from '#contracts/limits'
import type { ModelAccess } from '#contracts/model-access'
import { isProfileName, type PlacedProfile, type Profiles, restoredFromLog } from '#contracts/profiles'
import { createOutputSchemas } from '#kit/schemas'
import { attachmentBytesOf, maxAttachmentChars } from '#contracts/prompt'
import type { RunLinks } from './links.ts'
import { runErrors } from '#contracts/run-errors'
import { interruptedBy, type NextOutcome, type RunStore, type StartOutcome, type StartRun } from '#contracts/run-store'
import type { Fleet, RunnerLink } from '#contracts/runner'
import { type RunAccepted, type RunSummary, type Task } from '#contracts/runs'
import type { Webhooks } from '#contracts/webhooks'
import type { Cancellation, Executor } from './cancellation.ts'
import { type RunOrder, within } from './ending.ts'
import type { Run } from './run.ts'
import { placementOf } from './runner-stream.ts'
import { FairQueue } from './fair-queue.ts'

const unknownSession = () => runErrors.notFound({ message: 'No such session, or it was shut down.' })

/** Milliseconds that a start waits for a runner to take the run, before it answers that the run is accepted. */
const takenWaitMs = 2_000
/** Milliseconds that a start waits while the session is restored, because a failed restore has its own status. Specification 4.8, rule 3. */
const restoredWaitMs = 20_000
/** Attachments of more characters take milliseconds to process, so other work gets a turn in between. */
const largeChars = 256 * 1024
/** Milliseconds, a little more than ending a run takes. */
const lookAgainMs = 100

export interface SubmissionDeps {
  readonly store: RunStore
  readonly profiles: Profiles
  readonly runners: Fleet
  readonly webhooks: Webhooks | undefined
  readonly links: RunLinks
  /** Undefined: tenants have no limits. */
  readonly tenantLimits: TenantLimits | undefined
  /** Undefined: every tenant may use every model. */
  readonly models: ModelAccess | undefined
  /** Undefined: nothing is billed. */
  readonly billing: Billing | undefined
  readonly log: FastifyBaseLogger
}

/** The outcome of a start: refused because the tenant has no free slot, or the store's answer. */
type Stored = StartOutcome | { readonly kind: 'no_slot' }

/** One call to start a run. */
interface Asked {
  readonly tenantId: string
  readonly runId: string
  readonly task: Task
}

/** Starts runs: at once, or when the earlier runs in the queue of their session have ended. */
export class Submission {
  readonly #deps: SubmissionDeps
  readonly #executor: Executor
  readonly #cancellation: Cancellation
  readonly #schemas = createOutputSchemas()
  readonly #lines = new FairQueue((...session) => this.#lookAt(...session))

  constructor(deps: SubmissionDeps, executor: Executor, cancellation: Cancellation) {
    this.#deps = deps
    this.#executor = executor
    this.#cancellation = cancellation
  }

  /**
   * Starts a run, and resolves once a runner has it. A repeated call with this id and the same task joins the run; another task is refused with 409
   * `conflict`. A 503 has begun nothing, and the same call may be made again.
   */
  async start(tenantId: string, task: Task): Promise<RunAccepted> {
    const { id: runId = newId('run'), sessionId, chat } = task
    if (!isClientId(runId)) throw runErrors.invalidRunId()
    if (sessionId !== undefined && !isClientId(sessionId)) throw runErrors.invalidSessionId()
    this.#executor.limits.admitWrites(tenantId)
    try {
      await this.#check(tenantId, runId, task)
      const asked = { tenantId, runId, task }
      const starting = task.attachments ? await this.#withLinks(asked, task.attachments) : asked
      try {
        if (chat?.continued) return await this.#continueChat(starting)
        return await (sessionId === undefined ? this.#startNew(starting) : this.#startIn(starting, sessionId))
      } catch (error) {
        if (starting !== asked) this.#deps.links.release(asked)
        throw error
      }
    } finally {
      this.#executor.limits.arrived(tenantId, runId)
    }
  }

  /**
   * Starts the first queued run of a session if the session is free, and frees the session for an interrupt. Every conductor calls this whenever it
   * may be possible, and the store lets one of them do it.
   */
  readonly advance = (tenantId: string, sessionId: string): void => this.#lines.add(tenantId, sessionId)

  /** Refuses a task that would fail only later, when a model is called. */
  async #check(tenantId: string, runId: string, task: Task): Promise<void> {
    const { attachments = [], responseFormat, webhook, chat } = task
    const bytes = attachmentBytesOf(task)
    if (bytes > maxAttachmentChars) throw runErrors.attachmentsTooLarge()
    this.#executor.limits.admitAttachments(tenantId, runId, bytes)
    for (const [i, { data, upload }] of attachments.entries()) {
      if ((data === undefined) === (upload === undefined))
        throw runErrors.invalidAttachment({ message: `body/attachments/${i} must have either data or upload.` })
    }
    // Reading and serializing the request take tens of milliseconds each, so yield to other work in between.
    if (bytes > largeChars) await turn()
    if (responseFormat) await this.#schemas(tenantId, responseFormat.schema)
    // The webhook of an agent was checked when the agent was published, and a chat must not fail because of it.
    if (!webhook || chat) return
    if (!this.#deps.webhooks) throw runErrors.webhooksUnavailable()
    this.#deps.webhooks.check(tenantId, webhook.url)
  }
  /** Moves large attachments to the object store before the run is stored. */
  async #withLinks(asked: Asked, attachments: NonNullable<Task['attachments']>): Promise<Asked> {
    const carried = await this.#deps.links.take(asked, attachments).catch((error: unknown) => {
      this.#deps.links.release(asked)
      throw error
    })
    return { ...asked, task: { ...asked.task, attachments: carried } }
  }
  /** Starts the run in a new session. The session replaces `insteadOf` when the conversation of a chat continues in it. */
  async #startNew(asked: Asked, insteadOf?: string): Promise<RunAccepted> {
    const { limits } = this.#executor
    await limits.admitSession(asked.tenantId)
    const stored = this.#storeNew(asked, insteadOf).finally(() => limits.sessionStored(asked.tenantId))
    return (await stored).accepted
  }
  async #storeNew(asked: Asked, insteadOf?: string): Promise<{ readonly accepted: Promise<RunAccepted> }> {
    const remembers = asked.task.chat?.continued ?? false
    let placed = await this.#profileOf(asked)
    // Session ids have 32 random bits per runner, so an id that is in use is drawn again.
    for (let attempt = 0; attempt < 5; attempt++) {
      const { profile, revision } = placed
      const runner =
        remembers && !restoredFromLog(profile.runtime)
          ? runErrors.conversationEnded()
          : this.#placeOr(asked.tenantId, profile)
      if (runner instanceof Error) {
        // The cached profile may be outdated and have caused the refusal, so it is read anew.
        placed = await this.#profileOf(asked, true)
        if (placed.revision === revision) throw runner
        continue
      }
      const create = { profile, revision, ...(insteadOf === undefined ? {} : { insteadOf }) }
      const outcome = await this.#store({ ...asked, sessionId: newSessionId(runner.hash), create })
      const accepted = this.#begun(asked, outcome, { placed: runner, remembers })
      if (accepted) return { accepted }
      if (outcome.kind === 'stale_profile') placed = await this.#profileOf(asked, true)
      else if (outcome.kind !== 'session_taken') throw runErrors.conversationBusy()
    }
    throw unavailable({ message: 'No session could be created; try again.', retryable: true })
  }
  /** Continues in the session of the conversation, or in a new session with that conversation if the old one is gone. */
  async #continueChat(asked: Asked): Promise<RunAccepted> {
    const outcome = await this.#store({ ...asked, sessionId: '' })
    const accepted = this.#begun(asked, outcome)
    if (accepted) return accepted
    if (outcome.kind !== 'no_session' && outcome.kind !== 'other_profile') throw runErrors.conversationBusy()
    return this.#startNew(asked, outcome.sessionId)
  }
  async #startIn(asked: Asked, sessionId: string): Promise<RunAccepted> {
    const { whenBusy } = asked.task
    const mayWait = whenBusy === 'enqueue' || whenBusy === 'interrupt'
    const outcome = await this.#store({ ...asked, sessionId })
    if (mayWait && outcome.kind === 'no_slot') return this.#enqueue(asked, sessionId, whenBusy === 'interrupt')
    const accepted = this.#begun(asked, outcome)
    if (accepted) return accepted
    if (outcome.kind !== 'busy') throw await this.#unusable(asked, outcome.kind)
    if (!mayWait) throw runErrors.sessionBusy()
    return this.#enqueue(asked, sessionId, whenBusy === 'interrupt')
  }
  async #enqueue(asked: Asked, sessionId: string, interrupt: boolean): Promise<RunAccepted> {
    const { tenantId, runId } = asked
    const most = this.#deps.tenantLimits?.of(tenantId).queuedRuns ?? Infinity
    const outcome = await this.#deps.store.enqueue({ ...asked, sessionId, interrupt, most })
    if (outcome.kind === 'exists') return this.#join(asked, outcome.run)
    if (outcome.kind === 'full') throw runErrors.queueFull()
    if (outcome.kind === 'tenant_full') throw overLimit('queuedRuns', most)
    if (outcome.kind === 'unfunded') throw outcome.why
    if (outcome.kind !== 'queued') throw await this.#unusable(asked, outcome.kind)
    this.#executor.limits.began(tenantId, asked)
    if (interrupt) this.#executor.limits.firstChanged(tenantId, sessionId)
    // The session may have become free since it was found busy. A run that was just ending has not seen the queue, and may not have been seen to be
    // over, so look again before the next sweep would.
    if (outcome.holder === undefined) this.advance(tenantId, sessionId)
    else void this.#interrupt(asked, outcome.holder).finally(() => this.advance(tenantId, sessionId))
    setTimeout(this.advance, lookAgainMs, tenantId, sessionId).unref()
    return { runId, sessionId, status: 'queued' }
  }
  /** Ends the run that holds the session of a queued one, which may have to wait for just the slot that this run has. */
  async #interrupt({ tenantId, runId }: Asked, holder: string): Promise<void> {
    try {
      await this.#cancellation.cancel(tenantId, holder, { status: 'cancelled', ...interruptedBy(runId) })
    } catch (err) {
      // Whoever finds a slot for the queued run tries again.
      this.#deps.log.warn({ err, runId }, 'a run could not be interrupted yet')
    }
  }
  async #lookAt(tenantId: string, sessionId: string): Promise<void> {
    try {
      while (this.#executor.takes(sessionId)) {
        const next = await this.#claimNext(tenantId, sessionId)
        if (next.kind !== 'held') return
        await this.#cancellation.cancel(tenantId, next.runId, { status: 'cancelled', ...interruptedBy(next.interrupt) })
      }
    } catch (err) {
      // The next sweep of any conductor tries again.
      this.#deps.log.warn({ err, sessionId }, 'the next run of a session could not be started yet')
    }
  }
  /** Begins the next queued run of a session if there is one and the tenant has a slot and room for it. */
  async #claimNext(tenantId: string, sessionId: string): Promise<NextOutcome> {
    let next: NextOutcome = { kind: 'none' }
    const again = (): void => this.advance(tenantId, sessionId)
    await this.#executor.limits.beginLater(tenantId, sessionId, again, async (admits) => {
      next = await this.#deps.store.claimNext(tenantId, sessionId, admits)
      if (next.kind === 'started') this.#executor.begin({ ...next, announced: true })
      return next.kind === 'started'
    })
    return next
  }
  /** Stores the start of a run with a slot of its tenant. The slot passes to the run that begins. */
  async #store(run: StartRun): Promise<Stored> {
    const { tenantId, runId, task } = run
    const { limits } = this.#executor
    const slot = limits.take(tenantId)
    if (slot !== true && !(await slot)) {
      // A repeated call joins its run and needs no slot.
      const known = task.id === undefined ? undefined : await this.#deps.store.findRun(tenantId, runId)
      return known ? { kind: 'exists', run: known } : { kind: 'no_slot' }
    }
    let begun = false
    try {
      const outcome = await this.#deps.store.start(run)
      begun = outcome.kind === 'started'
      if (begun) limits.began(tenantId, run)
      return outcome
    } finally {
      if (!begun) limits.give(tenantId)
    }
  }

  /** Undefined: no run was started, and the caller must report why. */
  #begun(asked: Asked, outcome: Stored, more: Partial<RunOrder> = {}): Promise<RunAccepted> | undefined {
    if (outcome.kind === 'started') return this.#taken(this.#executor.begin({ ...outcome, task: asked.task, ...more }))
    if (outcome.kind === 'exists') return this.#join(asked, outcome.run)
    if (outcome.kind === 'no_slot')
      throw overLimit('runningRuns', this.#deps.tenantLimits!.of(asked.tenantId).runningRuns)
    if (outcome.kind === 'unfunded') throw outcome.why
    if (outcome.kind === 'no_conversation') throw runErrors.conversationNotFound()
    if (outcome.kind === 'stale_admission') throw runErrors.admissionStale()
    return undefined
  }
  async #taken(run: Run): Promise<RunAccepted> {
    const until = Date.now() + restoredWaitMs
    while (!(await within(run.dispatched, takenWaitMs))) if (!run.restoring || Date.now() > until) break
    const failure = await Promise.race([run.dispatched, undefined])
    if (failure) throw isOverLimit(failure) ? failure : unbegun(failure)
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
  async #unusable(asked: Asked, kind: Stored['kind']): Promise<AppError> {
    await this.#profileOf(asked)
    return kind === 'other_profile' ? runErrors.sessionProfileMismatch() : unknownSession()
  }
  /** The runner for a new session, or why there is none. */
  #placeOr(tenantId: string, profile: PlacedProfile['profile']): RunnerLink | AppError {
    try {
      this.#deps.models?.check(tenantId, profile.model)
      this.#deps.billing?.checkModel(profile.model)
      return this.#deps.runners.place(placementOf(profile))
    } catch (error) {
      if (isAppError(error)) return error
      throw error
    }
  }
}
