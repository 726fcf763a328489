import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import { answersVisitor, type Apps, endUserOf } from '#contracts/apps'
import { approvalStage, hasApprovals } from '#contracts/approvals'
import type { ConductorTool } from '#contracts/conductor-tools'
import {
  type AppCall,
  appCallStage,
  type ConductorCall,
  conductorCallStage,
  type Delegation,
  type DelegationAnswer,
  delegationStage,
  type WaitingCall,
} from '#contracts/delegation'
import { tenantKey } from '#contracts/ids'
import { defaultLimits, type Limits, type TenantLimits, type WaitForTurn } from '#contracts/limits'
import type { ObjectWrites } from '#contracts/object-writes'
import type { Profile } from '#contracts/profiles'
import type { Claim, RunStore } from '#contracts/run-store'
import type { RunnerLink } from '#contracts/runner'
import type { LogChunk } from '#contracts/run-event'
import { isTerminal, type ParentRun, type RunSummary, type Task } from '#contracts/runs'
import type { CallApprovals } from './call-approvals.ts'
import type { OrderedRun } from './ending.ts'
import type { Funds } from './funds.ts'
import type { RunUsage } from './usage.ts'

/** The stages of events that announce a tool call waiting for a conductor. */
export const waitingStages = [delegationStage, appCallStage, conductorCallStage, approvalStage] as const
/** Whether a run of this profile may make tool calls that wait for a conductor. */
export const mayWait = (profile: Profile): boolean =>
  (profile.apps ?? []).length > 0 || profile.tools.includes('delegate') || hasApprovals(profile)

/** A root run, which nobody delegated, together with all runs that it led to. */
interface Tree {
  /** The runs that were delegated in the tree, by id, and how many are under way here. */
  readonly runs: Set<string>
  open: number
  /** The delegating runs that execute here, by run id. Each callback hears what a delegated run has cost so far. */
  readonly told: Map<string, (runId: string, cents: number) => void>
}

/** So many delegated runs of a tenant start at once. A fan-out is one answer of a model, and all of it at once is what other tenants would feel. */
const startedAtOnce = 2

/**
 * The delegation trees whose runs execute here. One process holds a whole tree, because the process of a run also starts its children. A run that
 * was taken over, or resumed after it waited for people, brings what its tree had delegated before.
 */
export class DelegationTrees {
  readonly #limits: TenantLimits | undefined
  readonly #trees = new Map<string, Tree>()
  readonly #turn: WaitForTurn | undefined

  constructor(limits: TenantLimits | undefined) {
    this.#limits = limits
    this.#turn = limits?.pace(startedAtOnce)
  }

  limitsOf(tenantId: string): Limits {
    return this.#limits?.of(tenantId) ?? defaultLimits
  }
  /** Resolves when a delegated run may start, at the pace of the writes of its tenant, or when `signal` aborts. */
  async turn(tenantId: string, signal: AbortSignal): Promise<void> {
    await this.#turn?.(tenantId, signal).catch(() => {})
  }
  enter({ tenantId, runId }: Claim, root: string, told: (runId: string, cents: number) => void): Tree {
    const key = tenantKey(tenantId, root)
    const tree = this.#trees.get(key) ?? { runs: new Set(), open: 0, told: new Map() }
    this.#trees.set(key, tree)
    tree.told.set(runId, told)
    return tree
  }
  leave({ tenantId, runId }: Claim, root: string): void {
    const key = tenantKey(tenantId, root)
    const tree = this.#trees.get(key)
    if (tree?.told.delete(runId) && tree.told.size === 0) this.#trees.delete(key)
  }
  /** Reports the cost of this run to its parent while the parent executes here, so that parallel children cannot exceed the parent's limit together. */
  tellerOf({ tenantId, runId }: Claim, parent: ParentRun): (cents: number) => void {
    const key = tenantKey(tenantId, parent.rootId ?? parent.runId)
    return (cents) => this.#trees.get(key)?.told.get(parent.runId)?.(runId, cents)
  }
}

/** Starts and ends the runs that another one delegates to. */
interface ChildRuns {
  start(tenantId: string, task: Task): Promise<unknown>
  follow(tenantId: string, runId: string, afterSeq: number, signal: AbortSignal): AsyncIterable<LogChunk>
  find(tenantId: string, runId: string): Promise<RunSummary>
  cancel(tenantId: string, runId: string): Promise<void>
}

export interface DelegationsDeps {
  /** Starts and ends the runs that others delegate to. */
  readonly children: ChildRuns
  readonly trees: DelegationTrees
  readonly store: RunStore
  /** Undefined: this role has no apps. */
  readonly apps: Apps | undefined
  /** The parts of platform tools that conductors execute. */
  readonly conductorTools: ReadonlyMap<string, ConductorTool>
  readonly log: FastifyBaseLogger
}

/** The parts of a run that its tool calls use. */
interface DelegatingRun {
  readonly usage: RunUsage
  readonly funds: Pick<Funds, 'share'> | undefined
  readonly approvals: Pick<CallApprovals, 'answer'>
  /** Called when the children have cost more than the run had left. */
  onExceeded(): void
}

/** The tool calls of one run that a conductor carries out: child runs, which end with their parent, and calls of apps and of conductor tools. */
export class Delegations {
  readonly #deps: DelegationsDeps
  readonly #run: DelegatingRun
  readonly #claim: Claim
  readonly #profile: Profile
  readonly #depth: number
  /** The run at the top of its tree. */
  readonly #root: string
  readonly #tree: Tree
  /** Resolves when this process knows what the tree had delegated elsewhere. */
  #known: Promise<void> | undefined
  readonly #endUserId: string | undefined
  /** The chat that the run answers, if any. A child run gets it too, so that it serves the same visitor. */
  readonly #chat: { readonly public_run_id?: unknown }
  readonly #seen = new Set<string>()
  readonly #over = new AbortController()

  constructor(deps: DelegationsDeps, { claim, task, session, orphan }: OrderedRun, run: DelegatingRun) {
    this.#deps = deps
    this.#run = run
    this.#claim = claim
    this.#profile = session.profile
    this.#depth = task.parent?.depth ?? 0
    this.#root = task.parent?.rootId ?? task.parent?.runId ?? claim.runId
    this.#tree = deps.trees.enter(claim, this.#root, (runId, cents) => this.#cost(runId, cents))
    if (!orphan) this.#known = Promise.resolve()
    this.#endUserId = endUserOf(task.metadata)
    this.#chat = answersVisitor(task.metadata) ? { public_run_id: task.metadata!['public_run_id'] } : {}
  }

  /** Called when an event from the runner says that a tool call waits. */
  readonly look = oneAtATime<RunnerLink>(async (link) => {
    if (!this.#over.signal.aborted)
      await this.#take(link).catch((err: unknown) => this.#warn(err, 'the delegations of a runner could not be read'))
  })
  /** Called when the run is over: cancels the children that are still under way. */
  close(): void {
    this.#over.abort('the run is over')
    this.#deps.trees.leave(this.#claim, this.#root)
  }

  async #take(link: RunnerLink): Promise<void> {
    const { tenantId, sessionId, runId } = this.#claim
    for (const delegation of await link.delegations(tenantId, sessionId)) {
      if (this.#over.signal.aborted || delegation.parentRunId !== runId || this.#seen.has(delegation.id)) continue
      this.#seen.add(delegation.id)
      void this.#serve(delegation, link)
    }
  }
  async #serve(delegation: WaitingCall, link: RunnerLink): Promise<void> {
    const { tenantId, sessionId } = this.#claim
    const answer = await this.#answerOf(delegation)
    if (this.#over.signal.aborted) return
    await link
      .answerDelegation(tenantId, sessionId, delegation.id, answer)
      // If the runner is gone, this run ends too, or is tried again and delegates again.
      .catch((err: unknown) => this.#warn(err, 'a delegation could not be answered'))
  }
  #answerOf(waiting: WaitingCall): Promise<DelegationAnswer> {
    if ('approval' in waiting) return this.#run.approvals.answer(waiting, this.#over.signal)
    if ('app' in waiting) return this.#called(waiting)
    return 'tool' in waiting ? this.#executed(waiting) : this.#done(waiting)
  }
  async #executed({ tool, input }: ConductorCall): Promise<DelegationAnswer> {
    const part = this.#deps.conductorTools.get(tool)
    // Do not trust the runner: accept only tools of the profile, because the session has no others.
    if (!part || !this.#profile.tools.includes(tool)) return { ok: false, content: `'${tool}' is not available here.` }
    const { tenantId, sessionId, runId } = this.#claim
    const visitor = answersVisitor(this.#chat) ? ({ visitor: true } as const) : {}
    const of = { tenantId, sessionId, runId, profile: this.#profile, endUserId: this.#endUserId, ...visitor }
    try {
      return await part.execute(input, { ...of, signal: this.#over.signal })
    } catch (err) {
      if (!isAppError(err)) this.#warn(err, 'a tool threw')
      // Only the sentence of an AppError is shown: the text of an unknown exception may hold secrets.
      return { ok: false, content: (isAppError(err) ? err.sentence : undefined) ?? `'${tool}' failed.` }
    }
  }
  async #called({ app }: AppCall): Promise<DelegationAnswer> {
    const { apps } = this.#deps
    if (!apps || !this.#profile.apps?.includes(app.toolkit))
      return { ok: false, content: 'This agent does not have the app.' }
    if (app.again) return { ok: false, content: doubtful }
    return apps.call(this.#claim.tenantId, app, this.#endUserId, this.#over.signal)
  }
  async #done(delegation: Delegation): Promise<DelegationAnswer> {
    try {
      await (this.#known ??= this.#readTree())
      const refused = this.#refusal(delegation)
      return refused === undefined ? await this.#answerTo(delegation) : { ok: false, content: refused }
    } catch (err) {
      if (isAppError(err)) return { ok: false, content: `The task was not started: ${err.sentence ?? err.code}` }
      this.#warn(err, 'a delegated run failed')
      return { ok: false, content: 'The task could not be started.' }
    }
  }
  async #readTree(): Promise<void> {
    const { tenantId, runId } = this.#claim
    const { delegatedRuns } = this.#deps.trees.limitsOf(tenantId)
    try {
      for (const id of await this.#deps.store.delegatedInTree(tenantId, runId, delegatedRuns)) this.#tree.runs.add(id)
    } catch (error) {
      this.#known = undefined
      throw error
    }
  }
  #refusal({ profile, runId }: Delegation): string | undefined {
    const { delegationDepth, delegatedRuns, delegatedAtOnce } = this.#deps.trees.limitsOf(this.#claim.tenantId)
    const { delegates } = this.#profile
    if (this.#depth >= delegationDepth)
      return `This task was delegated itself too often: it cannot be delegated further (limit delegationDepth, ${delegationDepth}).`
    // A run that counts already is joined, which the call of the former process started.
    if (this.#tree.runs.size >= delegatedRuns && !this.#tree.runs.has(runId))
      return `This task and those it led to have delegated as often as they may (limit delegatedRuns, ${delegatedRuns}).`
    if (this.#tree.open >= delegatedAtOnce)
      return `As many delegated tasks are under way as may be (limit delegatedAtOnce, ${delegatedAtOnce}); try again when one has ended.`
    if (delegates && !delegates.includes(profile)) {
      return `This agent may not delegate to '${profile}'; it may to: ${delegates.join(', ') || 'nobody'}.`
    }
    return this.#run.usage.left === 0 ? 'The budget of this run is used up.' : undefined
  }
  async #answerTo(delegation: Delegation): Promise<DelegationAnswer> {
    this.#tree.runs.add(delegation.runId)
    this.#tree.open++
    try {
      await this.#deps.trees.turn(this.#claim.tenantId, this.#over.signal)
      if (this.#over.signal.aborted) return { ok: false, content: 'The run is over.' }
      const { status, result, error, costCents, usage } = await this.#runOf(delegation)
      this.#cost(delegation.runId, costCents ?? usage?.knownCostCents)
      const cost = costCents === undefined ? {} : { costCents }
      if (status === 'ok') return { ok: true, content: result ?? '', status, ...cost }
      const why = isTerminal(status) ? (error?.message ?? `It ended as ${status}.`) : 'It was left.'
      return { ok: false, content: `The task was not done: ${why}`, status, ...cost }
    } finally {
      this.#tree.open--
    }
  }
  /** Starts the child run and resolves to its summary at its end. */
  async #runOf({ runId: id, profile, prompt }: Delegation): Promise<RunSummary> {
    const { children } = this.#deps
    const { tenantId, runId } = this.#claim
    const { signal } = this.#over
    const { left } = this.#run.usage
    const parent = {
      runId,
      rootId: this.#root,
      depth: this.#depth + 1,
      awaits: true as const,
      ...(left === undefined ? {} : { budgetCents: left }),
    }
    // A repeated call joins the run that the first call started.
    const metadata = { ...(this.#endUserId === undefined ? {} : { end_user_id: this.#endUserId }), ...this.#chat }
    const spent = { parentSpentCents: this.#run.funds?.share() ?? 0 }
    const about = Object.keys(metadata).length === 0 ? {} : { metadata }
    await children.start(tenantId, { id, profile, prompt, parent, ...spent, ...about })
    const leave = (): void => void children.cancel(tenantId, id).catch(() => {})
    signal.addEventListener('abort', leave, { once: true })
    try {
      if (signal.aborted) leave()
      for await (const _ of children.follow(tenantId, id, 0, signal));
      return await children.find(tenantId, id)
    } finally {
      signal.removeEventListener('abort', leave)
    }
  }
  #cost(runId: string, cents: number | undefined): void {
    this.#run.usage.delegated(runId, cents)
    if (this.#run.usage.exceeded) this.#run.onExceeded()
  }
  #warn(err: unknown, message: string): void {
    this.#deps.log.warn({ err, runId: this.#claim.runId }, message)
  }
}

/**
 * Runs `work`, which never rejects, one call at a time, so that a second look cannot start a child that the first look is about to start. All calls
 * made meanwhile cause a single further run, because a worker can repeat its events without limit.
 */
function oneAtATime<Given>(work: (given: Given) => Promise<void>): (given: Given) => void {
  let next: { readonly given: Given } | undefined
  let working = false
  const workOn = async (): Promise<void> => {
    working = true
    for (let turn = next; turn; turn = next) {
      next = undefined
      await work(turn.given)
    }
    working = false
  }
  return (given) => {
    next = { given }
    if (!working) void workOn()
  }
}

interface WritesDeps {
  readonly objectWrites: ObjectWrites
  readonly log: FastifyBaseLogger
}

/** Records what the agent of a run writes to the object store. Called with the run's runner whenever the run announces a write. */
export function noteWrites({ objectWrites, log }: WritesDeps, claim: Claim): (runner: RunnerLink) => void {
  const { tenantId, sessionId, runId } = claim
  let after = 0
  return oneAtATime(async (runner) => {
    try {
      for (;;) {
        // The same call tells the runner which writes it may forget.
        const writes = await runner.objectWrites(tenantId, sessionId, runId, after)
        if (writes.length === 0) return
        await objectWrites.noted(claim, writes)
        after = writes.at(-1)!.n
      }
    } catch (err) {
      log.warn({ err, runId }, 'a write of an agent could not be recorded yet')
    }
  })
}

/** The previous conductor of this call is gone. The call must run at most once, so its outcome is reported as unknown. */
const doubtful =
  'The server that called the app was interrupted: whether the call was made is not known. Look before you call again.'
