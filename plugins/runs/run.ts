import { setTimeout as sleep } from 'node:timers/promises'
import { type AppError, isAppError } from '#kernel'
import { maxReplayBytes } from '#contracts/replay'
import type { OnCrash } from '#contracts/profiles'
import type { Billing } from '#contracts/billing'
import type { ObjectWrites } from '#contracts/object-writes'
import type { Prices } from '#contracts/prices'
import { resumedStage } from '#contracts/approvals'
import type { Claim } from '#contracts/run-store'
import { isLost } from '#contracts/endings'
import { type ExecuteRun, leaving, type RunnerLink } from '#contracts/runner'
import { CallApprovals, type CallApprovalsDeps } from './call-approvals.ts'
import { Delegations, type DelegationsDeps, noteWrites } from './delegations.ts'
import {
  afterAttempts,
  type AttemptPolicy,
  type Ending,
  endingOf,
  eventOf,
  finishOf,
  firstAttempt,
  next,
  policyOf,
  retryOf,
  type RunOrder,
  type RunState,
  type Stop,
  terminalLine,
} from './ending.ts'
import { Funds } from './funds.ts'
import { RunLog } from './log.ts'
import { readReplay } from './replay.ts'
import { Recorder, type RecorderDeps, RunnerEvents } from './recorder.ts'
import { beganNothing, RunnerStream, type RunnerStreamDeps } from './runner-stream.ts'
import { budgetOf, RunUsage } from './usage.ts'

export interface RunDeps extends RecorderDeps, RunnerStreamDeps, DelegationsDeps, CallApprovalsDeps {
  /** Undefined: this role has no object store. */
  readonly objectWrites: ObjectWrites | undefined
  /** Undefined: this role has no billing, so runs need no money. */
  readonly billing: Billing | undefined
  /** Undefined: the cost of a run is unknown, unless its runtime reports it. */
  readonly prices: Prices | undefined
  /** The policy for profiles that set none. */
  readonly onCrash: OnCrash
  readonly deadlineGraceMs: number
  /** Milliseconds that the stream of a stopped run may take to end, before the run ends without it. */
  readonly windDownMs: number
}

/** One claimed run: from its accepted event, through the streams of its runners, to its terminal event and the release of its session. */
export class Run {
  readonly claim: Claim
  readonly log = new RunLog()
  /** Milliseconds of the monotonic clock at which the run is stopped as timed out. */
  readonly deadline: number
  /** Resolves to undefined once a runner has taken the run, or to the reason why none ever will. Never rejects. */
  readonly dispatched: Promise<AppError | undefined>
  /** Resolves to how this process finished with the run. Never rejects. */
  readonly done: Promise<'ended' | 'left' | 'discarded'>

  readonly #deps: RunDeps
  readonly #order: RunOrder
  readonly #policy: AttemptPolicy
  readonly #timesOutAt: number
  readonly #abort = new AbortController()
  readonly #stream: RunnerStream
  readonly #recorder: Recorder
  readonly #usage: RunUsage
  readonly #funds: Funds | undefined
  /** Undefined until a call waits for people. */
  #approvals: CallApprovals | undefined
  /** How often the run was parked for people's decisions. The attempts after that are not retries. */
  #waits = 0
  /** Undefined until the run delegates. */
  #delegations: Delegations | undefined
  /** Undefined until its agent writes to the object store. */
  #noteWrites: ReturnType<typeof noteWrites> | undefined
  readonly #taken = Promise.withResolvers<AppError | undefined>()
  /** How the run ends. The first decision stands. */
  readonly #decided = Promise.withResolvers<Ending>()
  #state: RunState = 'dispatching'
  /** Why the run was stopped. The first reason stands. */
  #stopped: Stop | undefined

  constructor(deps: RunDeps, order: RunOrder) {
    const { claim, session, task } = order
    this.claim = claim
    this.#deps = deps
    this.#order = order
    this.#policy = policyOf(session.profile, deps.onCrash)
    const beganAt = Date.now() - (order.orphan?.elapsedMs ?? 0)
    this.#timesOutAt = beganAt + this.#policy.timeoutMs
    this.deadline = this.#timesOutAt + deps.deadlineGraceMs
    this.#stream = new RunnerStream(deps, order, this.#abort.signal, () => this.#taken.resolve(undefined))
    this.#recorder = new Recorder(deps, claim, this.log, () => this.leave())
    const limits = [session.profile.limits.maxCostCents, task.parent?.budgetCents]
    this.#usage = new RunUsage(deps.prices, limits, task.parent && deps.trees.tellerOf(claim, task.parent))
    const spending = { usage: this.#usage, beganAt, onExceeded: this.#exceeded }
    this.#funds = deps.billing && new Funds({ ...deps, billing: deps.billing }, order, spending)
    this.dispatched = this.#taken.promise
    this.done = this.#drive()
      .catch((err: unknown) => {
        deps.log.error({ err, runId: claim.runId }, 'a run could not be ended')
        return this.#leave()
      })
      .finally(() => {
        this.#delegations?.close()
        this.#taken.resolve(undefined)
      })
  }

  get state(): RunState {
    return this.#state
  }
  /** The runner that took the run. Undefined until one has. */
  get runner(): RunnerLink | undefined {
    return this.#stream.runner
  }
  /** True while the session is being restored, before a runner takes the run. */
  get restoring(): boolean {
    return this.#stream.restoring
  }
  /** Another conductor may continue this run after this process. */
  get resumes(): boolean {
    return this.#policy.resumes
  }
  /** Called when the caller is told that the run is accepted. From then on the run cannot be taken back. */
  announce(): void {
    this.#stream.announced = true
  }
  /** Ends the run for this reason, unless it ends by itself first. The runner first gets a moment to end the run. */
  stop(why: Stop): void {
    if (this.#stopped || this.#isDecided) return
    this.#stopped = why
    this.#abort.abort(why.code)
    const late = setTimeout(() => this.abandon(), this.#deps.windDownMs)
    void this.#decided.promise.then(() => clearTimeout(late))
  }
  readonly #exceeded = (why?: string): void => this.stop(endingOf('budget_exceeded', why))
  /** Stops waiting for the runner of a stopped run. */
  abandon(): void {
    if (this.#stopped) this.#decided.resolve(this.#stopped)
  }
  /** Another process has the run: this process stores and announces nothing more. The runner continues if another reader may follow. */
  leave(): void {
    if (this.#isDecided || !this.#to('left')) return
    this.#abort.abort(this.#policy.resumes ? leaving : undefined)
    this.#leave()
  }
  /** Stores everything and leaves the run to the next conductor that takes it. False: the run ends here. */
  async handOver(): Promise<boolean> {
    await this.dispatched
    if (this.#isDecided || this.#stopped || !this.#to('left')) return false
    // Events that the runner sends from now on are left for the next reader.
    this.#abort.abort(leaving)
    if (await this.#recorder.flush()) {
      await this.#deps.store.handOver(this.claim).catch((err: unknown) => {
        // The row still names this process, which ends soon. A sweep of another process then finds the run.
        this.#deps.log.warn({ err, runId: this.claim.runId }, 'a run could not be handed over')
      })
    }
    this.#leave()
    return true
  }

  /** The run is parked: nobody executes it until people have decided. A stop that came just now finds the run in the store. */
  #parked(): void {
    const stop = this.#stopped
    const { tenantId, runId } = this.claim
    if (stop) void this.#deps.store.endParked(tenantId, runId, stop.status, stop).catch(() => {})
    if (!this.#to('left')) return
    this.#abort.abort('parked')
    this.#leave()
  }

  /** True when the ending is known, or is another process's to decide. No reason changes it any more. */
  get #isDecided(): boolean {
    return this.#state === 'ending' || this.#state === 'refused' || next[this.#state].length === 0
  }
  /** False: another transition came first, so this one is invalid and nothing has changed. */
  #to(state: RunState): boolean {
    const leads = next[this.#state].includes(state)
    if (leads) this.#state = state
    return leads
  }
  #leave(): 'left' {
    this.#to('left')
    this.log.detach()
    this.#decided.resolve(endingOf('interrupted'))
    return 'left'
  }

  async #drive(): Promise<'ended' | 'left' | 'discarded'> {
    if (!(await this.#begin())) return this.#leave()
    this.#attempts()
      .then((last) => this.#heard(last))
      .then(this.#decided.resolve, this.#decided.reject)
    const ending = await this.#decided.promise
    if (this.#state === 'discarded') return 'discarded'
    if (!this.#to('ending')) return this.#leave()
    this.#taken.resolve(undefined)
    this.#funds?.over(ending, this.#order, this.#usage)
    const terminal = terminalLine(this.claim, this.log.lastSeq + 1, ending)
    const stored = await this.#recorder.finish(
      finishOf(ending, this.#usage, this.#order.session.profile, this.runner),
      terminal,
    )
    if (!stored || !this.#to('ended')) return this.#leave()
    this.log.append(terminal)
    return 'ended'
  }
  /** Writes the first event, or continues where the former owner stopped. False: the store was given up. */
  async #begin(): Promise<boolean> {
    if (this.#order.orphan) {
      const past = await readReplay(this.#deps, this.claim, this.#usage)
      if (!past) return false
      this.log.begin(past.lastSeq)
      this.#waits = past.resumes
    }
    // The former owner may have died before it stored the accepted event.
    if (this.log.lastSeq === 0) this.#recorder.add(eventOf(this.claim, 1, { type: 'progress', stage: 'accepted' }))
    return true
  }
  /** Executes all attempts. Each attempt after the first continues after the stored events of the earlier ones. */
  async #attempts(): Promise<Ending> {
    const { orphan } = this.#order
    let attempt = orphan?.attempt ?? 1
    let goesOn = orphan?.parked ?? false
    let last: Ending = endingOf('interrupted')
    if (!goesOn) last = orphan ? await this.#readOn(orphan.handedOver) : await this.#execute(this.#first())
    for (; ; goesOn = false) {
      if (this.#stopped) return this.#stopped
      if (goesOn) this.#waits++
      const tries = attempt - this.#waits
      const wait = goesOn ? 0 : this.#policy.waitAfter(tries, last, this.#timesOutAt - Date.now())
      if (wait === undefined || !this.#to('waiting')) return afterAttempts(last, tries)
      const body = await this.#prepare(attempt + 1, goesOn ? undefined : last, wait)
      if (!body || !this.#to('dispatching')) return this.#stopped ?? afterAttempts(last, tries)
      attempt++
      last = await this.#execute(body)
    }
  }
  #first(): ExecuteRun {
    const { limits, prices } = this.#deps
    return {
      ...firstAttempt(this.#order, this.#policy),
      ...limits.ofRunner(this.claim.tenantId),
      ...budgetOf(this.#order.session.profile, this.#usage, prices),
    }
  }
  /** Reads on at the runner that may still execute a run of another process. */
  async #readOn(handedOver: boolean): Promise<Ending> {
    if (this.#stream.waits) this.#children().look(this.#stream.waits)
    const ending = await this.#consume(this.#stream.attach(this.log.lastSeq), this.log.lastSeq + 1)
    // No runner has the run: it was never started, or was lost with its runner.
    if (this.#state !== 'dispatching') return ending
    if (handedOver && this.log.lastSeq <= 1) return this.#execute({ ...this.#first(), firstSeq: this.log.lastSeq + 1 })
    return endingOf('interrupted')
  }
  #execute(body: ExecuteRun): Promise<Ending> {
    return this.#consume(this.#stream.execute(body), body.firstSeq)
  }
  /** Consumes one runner's stream to its end. */
  async #consume(stream: AsyncIterable<Buffer>, firstSeq: number): Promise<Ending> {
    const { links, objectWrites, log } = this.#deps
    const events = new RunnerEvents(this.claim.runId, firstSeq, this.#usage)
    try {
      for await (const bytes of stream) {
        if (this.#isDecided || this.#stopped) break
        if (this.#to('streaming')) this.#taken.resolve(undefined)
        const read = events.read(bytes)
        if (read.delegates && this.runner) this.#children().look(this.runner)
        if (read.writes && this.runner && objectWrites)
          (this.#noteWrites ??= noteWrites({ objectWrites, log }, this.claim))(this.runner)
        let { passed } = read
        if (passed && read.tools && links.wants(passed)) {
          passed = await links.shorten(this.claim, passed)
          if (this.#isDecided || this.#stopped) break
        }
        const wait = passed && this.#recorder.add(passed, read.tools && this.#policy.resumes)
        if (read.ending) {
          // Decide a final ending here. A lost attempt may still be followed by another one.
          if (read.ending.status === 'ok' || !isLost(read.ending.code)) this.#decided.resolve(read.ending)
          return read.ending
        }
        if (this.#usage.exceeded) this.#exceeded()
        const asked = this.#funds?.look()
        if (wait) await wait
        if (asked) await asked
      }
      return this.#stopped ?? endingOf('runner_lost')
    } catch (error) {
      if (this.#stopped || this.#isDecided) return this.#stopped ?? endingOf('interrupted')
      if (isAppError(error) && this.#state === 'dispatching') return this.#refused(error)
      log.warn({ err: error, runId: this.claim.runId }, 'the stream of a run broke')
      return endingOf('runner_lost')
    }
  }
  /** Whoever stops a run pays for the model calls that its sandbox had under way. The runner reports what they used. */
  async #heard(ending: Ending): Promise<Ending> {
    const stopped = this.#stopped && this.#funds && this.#usage.sandbox
    if (stopped) await this.#recorder.lastWords(this.#stream, this.#usage, () => this.#isDecided)
    return ending
  }
  /** No runner took the run. If the caller was not answered yet, the run is taken back. */
  async #refused(error: AppError): Promise<Ending> {
    const ending: Ending = { status: 'error', code: error.code, message: error.message }
    if (!beganNothing(error) || this.#stream.announced || this.#policy.waitAfter(1, ending, Infinity) !== undefined)
      return ending
    if (!this.#to('refused') || !(await this.#recorder.discard()) || !this.#to('discarded')) return ending
    this.log.detach()
    this.#taken.resolve(error)
    return ending
  }
  /** Announces another attempt and waits. Undefined: the run was stopped, or its replay is too large for another attempt. */
  async #prepare(attempt: number, last: Ending | undefined, wait: number): Promise<ExecuteRun | undefined> {
    const past = (await this.#recorder.flush()) ? await readReplay(this.#deps, this.claim) : undefined
    if (!past || this.#stopped || past.bytes > maxReplayBytes) return undefined
    const { cutFrom, lastSeq } = past
    const replay = await this.#deps.links.whole(this.claim, past.replay)
    const told = last
      ? retryOf(this.claim, lastSeq + 1, last as Stop, attempt - this.#waits, this.#policy.most, cutFrom)
      : eventOf(this.claim, lastSeq + 1, { type: 'progress', stage: resumedStage, attempt })
    const decided = this.#order.session.profile.requireApproval ? await this.#waitingCalls().decided() : {}
    void this.#recorder.add(told)
    const owned = await this.#recorder.flush(attempt)
    this.#taken.resolve(undefined)
    if (owned && wait > 0) await sleep(wait, undefined, { signal: this.#abort.signal }).catch(() => {})
    if (!owned || this.#stopped) return undefined
    const timeoutMs = Math.max(1, this.#timesOutAt - Date.now())
    return { ...this.#first(), firstSeq: lastSeq + 2, timeoutMs, attempt, replay, ...decided }
  }
  #waitingCalls(): CallApprovals {
    return (this.#approvals ??= new CallApprovals(this.#deps, this.#order, {
      log: this.log,
      flush: () => this.#recorder.flush(),
      parked: () => this.#parked(),
    }))
  }
  #children(): Delegations {
    return (this.#delegations ??= new Delegations(this.#deps, this.#order, {
      usage: this.#usage,
      funds: this.#funds,
      approvals: this.#waitingCalls(),
      onExceeded: this.#exceeded,
    }))
  }
}
