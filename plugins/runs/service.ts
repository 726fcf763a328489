import { isAppError, unavailable } from '#kernel'
import { isClientId, tenantKey } from '#contracts/ids'
import type { Kv } from '#contracts/kv'
import { lastSeqOf, type LogChunk } from '#contracts/run-event'
import type { AdmitAttachments, Claim } from '#contracts/run-store'
import { isTerminal, type RunAccepted, type RunDispatch, type RunSummary, type Task } from '#contracts/runs'
import { restoredFromLog } from '#contracts/profiles'
import { attachmentBytesOf } from '#contracts/prompt'
import { runErrors } from '#contracts/run-errors'
import { sessionChannels } from '#contracts/sessions'
import { Cancellation, drainWaitMs, type Executor, type Terminated } from './cancellation.ts'
import { DelegationTrees } from './delegations.ts'
import { endingOf, orphaned, policyOf, type RunOrder, within } from './ending.ts'
import { RunLimits } from './limits.ts'
import { Line } from './line.ts'
import { follow, type Logs, runChannel, unknownRun } from './log.ts'
import { FlushClock } from './recorder.ts'
import { Run, type RunDeps } from './run.ts'
import { StateSaver } from './state-saver.ts'
import { Submission, type SubmissionDeps } from './submission.ts'

interface RunServiceDeps
  extends Omit<RunDeps, 'children' | 'announce' | 'givingUp' | 'flushes' | 'limits' | 'trees'>, SubmissionDeps {
  readonly kv: Kv
  readonly drainMs: number
}

/** A thousand orphans take a minute and a half to begin, and less when several conductors share them. */
const adoptedPerSweep = 25
/** One timer checks the deadlines of all runs, this often. */
const deadlineTickMs = 250

/** The runs of this process, and access to those of other processes. */
export class RunService implements Executor {
  readonly limits: RunLimits
  readonly #deps: RunServiceDeps
  /** What each run here needs of this process. */
  readonly #running: RunDeps
  readonly #active = new Map<string, Run>()
  /** The parents in whose slots delegated runs have gone on here, and the other delegated runs of each that may go on next. */
  readonly #slotsOfParents = new Map<string, Line>()
  /** Calls to start a run that are under way. */
  readonly #starting = new Set<Promise<unknown>>()
  readonly #givingUp = new AbortController()
  readonly #saver: StateSaver
  readonly #logs: Logs
  readonly #cancellation: Cancellation
  readonly #submission: Submission
  readonly #leaveRunners: () => void
  #closing: Promise<void> | undefined
  /** Whether another conductor takes over what is left to it. Asked once, by the first run that needs to know. */
  #others: Promise<boolean> | undefined
  #wheel: NodeJS.Timeout | undefined

  constructor(deps: RunServiceDeps) {
    const { store, kv, runners, log } = deps
    const told = new Set<string>()
    const tell = (): void => {
      kv.publish([...told].map(runChannel), '')
      told.clear()
    }
    // Runs that were stored together are announced together.
    const announce = ({ runId }: Claim): void => {
      if (kv.backend === 'memory') return
      if (told.size === 0) setImmediate(tell)
      told.add(runId)
    }
    this.#deps = deps
    this.limits = new RunLimits(store, deps.tenantLimits, log)
    const trees = new DelegationTrees(deps.tenantLimits)
    this.#running = {
      ...deps,
      children: this,
      limits: this.limits,
      trees,
      givingUp: this.#givingUp.signal,
      announce,
      flushes: new FlushClock(),
    }
    this.#saver = new StateSaver(store, log, (...saved) => this.limits.stored(...saved))
    this.#logs = { store, kv, live: (tenantId, runId) => this.local(tenantId, runId)?.log }
    this.#cancellation = new Cancellation(store, this.#logs, this)
    this.#submission = new Submission(deps, this, this.#cancellation)
    this.#leaveRunners = runners.onDraining((link) => void this.#saver.evacuate(link))
    this.#listen()
  }

  get closing(): boolean {
    return this.#closing !== undefined
  }
  async start(tenantId: string, task: Task): Promise<RunAccepted> {
    if (this.#closing) throw unavailable({ message: 'This server is stopping; try again.', retryable: true })
    const start = this.#submission.start(tenantId, task)
    this.#starting.add(start)
    return start.finally(() => this.#starting.delete(start))
  }
  /** Replays, then follows to the terminal event, which is always delivered. Holds a live run's log from the call on. */
  follow(tenantId: string, runId: string, afterSeq: number, signal: AbortSignal): AsyncIterable<LogChunk> {
    return follow(this.#logs, tenantId, runId, afterSeq, signal)
  }
  async find(tenantId: string, runId: string): Promise<RunSummary> {
    const run = isClientId(runId) ? await this.#deps.store.findRun(tenantId, runId) : undefined
    if (!run) throw unknownRun()
    return run
  }
  /** The vendor's conversation handle of the run's session; empty until there is one. */
  async handleOf(tenantId: string, runId: string): Promise<string> {
    const { sessionId } = await this.find(tenantId, runId)
    const session = await this.#deps.store.findSession(tenantId, sessionId)
    // An earlier release stored a handle for every runtime, also where it has no use.
    return session && !restoredFromLog(session.profile.runtime) ? (session.runtimeSessionId ?? '') : ''
  }
  /** The events up to this instant. `ended`: the caller has seen that the run is over, so its last event is included. */
  async *events(tenantId: string, runId: string, ended: boolean): AsyncIterable<LogChunk> {
    // The end of a run reaches the store before it reaches memory.
    const last = ended ? undefined : this.local(tenantId, runId)?.log.lastSeq
    if (last === undefined) {
      for (let cursor = 0; ;) {
        const page = await this.#deps.store.readLog(tenantId, runId, cursor)
        if (!page || page.chunks.length === 0) return
        yield* page.chunks
        cursor = lastSeqOf(page.chunks.at(-1)!)
      }
    }
    for await (const chunk of this.follow(tenantId, runId, 0, new AbortController().signal)) {
      yield chunk
      if (lastSeqOf(chunk) >= last) return
    }
  }
  async cancel(tenantId: string, runId: string): Promise<void> {
    const run = this.local(tenantId, runId)
    if (run) {
      run.stop(endingOf('cancelled'))
      await within(run.done, drainWaitMs)
      // The run was handed over meanwhile, so its new owner is asked as well.
      if ((await Promise.race([run.done, undefined])) !== 'left') return
    }
    const { status } = await this.find(tenantId, runId)
    if (!isTerminal(status)) await this.#cancellation.cancel(tenantId, runId, endingOf('cancelled'))
  }
  /**
   * Resumes a run that waited for people, if it still waits, once its tenant has a slot for it as for any other. Throws when this process takes no
   * more runs.
   */
  async resume(tenantId: string, runId: string): Promise<void> {
    if (this.#closing) throw unavailable({ message: 'This server is stopping.', retryable: true })
    // A run that is forgotten here, because this process dies or the store is away, is found by the sweep of approvals.
    const again = (): void => void this.resume(tenantId, runId).catch(() => {})
    const claim = async (admits: AdmitAttachments | undefined): Promise<boolean> => {
      const orphan = await this.#deps.store.resume(tenantId, runId, admits)
      if (orphan) begun = this.begin({ ...orphan, announced: true, orphan: { ...orphan, parked: true } })
      return orphan !== undefined
    }
    // Another call may begin the run with a slot of its own while this one has that of the parent.
    let begun: Run | undefined, slot: string | undefined
    const hasSlotOfParent = async (): Promise<boolean> =>
      (slot = await this.#slotOfParent(tenantId, runId, again)) !== undefined
    const giveBack = (): void => {
      if (slot === undefined) return
      const next = this.#slotsOfParents.get(slot)
      this.#slotsOfParents.delete(slot)
      next?.callFirst(Infinity)
    }
    try {
      await this.limits.beginLater(tenantId, `run ${runId}`, again, claim, hasSlotOfParent)
    } finally {
      if (begun) void begun.done.then(giveBack)
      else giveBack()
    }
  }
  /**
   * A parent keeps its slot while it waits for a delegated run: a tenant whose slots all belong to parents would stand still if those runs needed
   * slots, too. One at a time goes on here in the slot of each parent. Undefined: this one does not; if another one does, `again` is called once the slot
   * is free.
   */
  async #slotOfParent(tenantId: string, runId: string, again: () => void): Promise<string | undefined> {
    const { parent } = await this.find(tenantId, runId)
    if (!parent) return undefined
    const slot = tenantKey(tenantId, parent.runId)
    const line = this.#slotsOfParents.get(slot)
    if (line) return void line.join(runId, again)
    this.#slotsOfParents.set(slot, new Line())
    const isRunning = await this.find(tenantId, parent.runId).then(
      ({ status }) => status === 'running',
      () => false,
    )
    if (!isRunning) this.#slotsOfParents.delete(slot)
    return isRunning ? slot : undefined
  }
  async terminate(tenantId: string, runId: string): Promise<Terminated> {
    if (!isClientId(runId)) throw runErrors.invalidRunId()
    return this.#cancellation.terminate(tenantId, runId, endingOf('cancelled'))
  }
  /**
   * Takes nothing new. Hands runs under way to another conductor; where there is none, lets them end, for a limited time. Readers are served until
   * then.
   */
  drain(): Promise<void> {
    return (this.#closing ??= this.#drain())
  }
  /** Ends or leaves the runs that `drain` has not, and saves idle sessions. */
  async close(): Promise<void> {
    await this.drain()
    for (const run of this.#active.values()) {
      // Leave runs that may be continued to another conductor.
      if (run.resumes) run.leave()
      else run.stop(endingOf('interrupted', 'The server that executed this run was stopped.'))
    }
    const over = this.#over()
    // Do not wait for a store that cannot be reached: a sweep ends these runs once this process's lease has expired.
    if (!(await within(over, this.#deps.windDownMs + 1_000))) this.#givingUp.abort()
    await over
    this.#leaveRunners()
    await within(this.#saver.drain(), this.#deps.drainMs)
    clearInterval(this.#wheel)
    await this.limits.close()
  }

  local(tenantId: string, runId: string): Run | undefined {
    return this.#active.get(tenantKey(tenantId, runId))
  }
  takes(sessionId: string): boolean {
    try {
      return !this.#closing && this.#deps.runners.home({ sessionId }) !== undefined
    } catch {
      return false
    }
  }
  begin(order: RunOrder): Run {
    const { claim, session } = order
    const { tenantId, sessionId, runId } = claim
    const key = tenantKey(tenantId, runId)
    // A conversation that is restored from its log needs no saved state.
    const saver = restoredFromLog(session.profile.runtime) ? undefined : this.#saver
    const waiting = saver?.busy(tenantId, sessionId)
    // Whoever starts or resumes a run already has a slot for it. An orphan had one in the process that is gone.
    if (order.orphan && !order.orphan.parked) this.limits.force(tenantId)
    const attachments = attachmentBytesOf(order.task)
    this.limits.holdAttachments(tenantId, runId, attachments)
    const run = new Run(this.#running, order)
    this.#active.set(key, run)
    // The start was under way when this process was told to stop.
    if (this.#closing) void this.#leaveToOthers(run)
    this.#deps.kv.publish([`${sessionChannels}${tenantId}:${sessionId}`], '')
    this.#wheel ??= setInterval(() => this.#turn(), deadlineTickMs).unref()
    void run.done.then((how) => {
      // This process may have taken the run back, under another claim.
      if (this.#active.get(key) === run) this.#active.delete(key)
      this.limits.give(tenantId)
      this.limits.giveAttachments(tenantId, attachments)
      const link = run.runner ?? waiting
      // When the run continues elsewhere, this runner has only half a turn, so its state is not saved.
      if (link && how === 'ended') saver?.rest(claim, link)
      if (this.#active.size > 0) return
      clearInterval(this.#wheel)
      this.#wheel = undefined
    })
    return run
  }

  /** Subscribes to the notifications of the store. */
  #listen(): void {
    const { store, onCrash } = this.#deps
    store.onFenced(() => {
      this.limits.lost()
      for (const run of this.#active.values()) run.leave()
    })
    store.executing((tenantId, runId) => this.local(tenantId, runId) !== undefined)
    store.onEndRequested((tenantId, runId, reason) =>
      this.local(tenantId, runId)?.stop({ status: 'cancelled', ...reason }),
    )
    store.onWaiting(this.#submission.advance)
    store.onOrphan({
      onCrash,
      room: () => (this.#closing ? 0 : adoptedPerSweep),
      wants: ({ session, attempt, handedOver, elapsedMs }) => {
        const { timeoutMs, resumes } = policyOf(session.profile, onCrash)
        return elapsedMs < timeoutMs && (handedOver || resumes) ? true : orphaned(attempt)
      },
      adopt: (orphan) => void this.begin({ ...orphan, announced: true, orphan }),
      // If the run cannot resume here, the sweep of approvals finds it.
      resume: (tenantId, runId) => void this.resume(tenantId, runId).catch(() => {}),
    })
  }
  #turn(): void {
    const now = Date.now()
    for (const run of this.#active.values()) {
      const full = this.limits.fullOf(run.claim.tenantId)
      if (now > run.deadline) run.stop(endingOf('timeout'))
      else if (full) run.stop(endingOf(full))
    }
  }
  #over(): Promise<unknown> {
    return Promise.all([...this.#active.values()].map((run) => run.done))
  }
  /** Without another conductor the run continues here for as long as it may. */
  async #leaveToOthers(run: Run): Promise<void> {
    this.#others ??= this.#deps.store.retreat().catch(() => false)
    if (await this.#others) await run.handOver()
  }
  async #drain(): Promise<void> {
    const left = [...this.#active.values()].map((run) => this.#leaveToOthers(run))
    // Runs that these runs start are left to others as well. Waiting for their end would delay the stop.
    const begun = Promise.allSettled([...this.#starting, ...left])
    await within(
      begun.then(() => this.#over()),
      this.#deps.drainMs,
    )
  }
}

/** The run service for callers in the same kernel: what a gateway sees, without the network. */
export const createDispatch = (service: RunService): RunDispatch => ({
  async start(tenantId, task, afterSeq, signal) {
    const accepted = await service.start(tenantId, task)
    return { ...accepted, events: service.follow(tenantId, accepted.runId, afterSeq, signal) }
  },
  follow: (...run) => service.follow(...run),
  find: (tenantId, runId) =>
    service.find(tenantId, runId).catch((error: unknown) => {
      if (isAppError(error) && error.status === 404) return undefined
      throw error
    }),
  cancel: (...run) => service.cancel(...run),
  async ping() {
    if (service.closing) throw unavailable({ message: 'This server is stopping.', retryable: true })
  },
})
