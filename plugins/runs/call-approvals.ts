import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import { endUserOf } from '#contracts/apps'
import { type Approvals, hasApprovals, needsApproval, rejection } from '#contracts/approvals'
import type { ApprovalCall, DelegationAnswer } from '#contracts/delegation'
import { maxReplayBytes, type Replay } from '#contracts/replay'
import type { RunStore } from '#contracts/run-store'
import type { ExecuteRun } from '#contracts/runner'
import type { OrderedRun } from './ending.ts'
import { readReplay } from './replay.ts'

/** Milliseconds between two looks at a call that waits while its run cannot be left: at first because its events are on their way. */
const looksMs = [20, 50, 100, 250, 500, 1_000, 2_000] as const

export interface CallApprovalsDeps {
  readonly store: RunStore
  /** Undefined: in this role nobody can approve anything. */
  readonly approvals: Approvals | undefined
  readonly log: FastifyBaseLogger
  readonly givingUp: AbortSignal
}

type Call = ApprovalCall['approval']

/** What has to be known of the run to leave it. */
interface Leaving {
  readonly log: { readonly lastSeq: number }
  /** Stores its events; false: it is another process's. */
  flush(): Promise<boolean>
  /** The store has it without a conductor. */
  parked(): void
}

/** The calls of one run that wait for people. */
export class CallApprovals {
  readonly #deps: CallApprovalsDeps
  readonly #order: OrderedRun
  readonly #run: Leaving
  readonly #waiting = new Map<string, Call>()
  /** The last event when it was looked whether the run can be left. */
  #looked = 0

  constructor(deps: CallApprovalsDeps, order: OrderedRun, run: Leaving) {
    this.#deps = deps
    this.#order = order
    this.#run = run
  }

  /** What was decided of the run's calls, for whoever executes it next. */
  async decided(): Promise<Pick<ExecuteRun, 'decided'>> {
    const { claim, session } = this.#order
    if (!this.#deps.approvals || !hasApprovals(session.profile)) return {}
    return { decided: await this.#deps.approvals.decided(claim.tenantId, claim.runId) }
  }

  /**
   * Whether a call may be made. As a rule the run is left before that is known, and asks again when it goes on; `over` aborts then. Where
   * it cannot be left it waits here.
   */
  async answer({ approval }: ApprovalCall, over: AbortSignal): Promise<DelegationAnswer> {
    const { approvals } = this.#deps
    const { claim, task, session } = this.#order
    const { profile } = session
    const { key, tool } = approval
    // What a runner says is about a call that its own copy of the profile has wait.
    if (!needsApproval(profile, tool)) return { ok: true, content: '' }
    if (!approvals) return { ok: false, content: `'${tool}' needs an approval, and nobody can give one here.` }
    const { tenantId, runId, sessionId } = claim
    const call = { tenantId, runId, sessionId, key, tool, arguments: approval.arguments, profile }
    this.#waiting.set(key, approval)
    try {
      for (let look = 0; ; look++) {
        const decision = await approvals.ask({ ...call, endUserId: endUserOf(task.metadata) })
        if (decision !== 'waiting')
          return decision.approved ? { ok: true, content: '' } : { ok: false, content: rejection(tool, decision) }
        await this.#leave(approvals)
        await sleep(looksMs[look] ?? looksMs.at(-1), undefined, { signal: over })
      }
    } catch (err) {
      if (isAppError(err) && err.status < 500)
        return { ok: false, content: err.sentence ?? `'${tool}' cannot be approved.` }
      if (!over.aborted) this.#deps.log.warn({ err, runId }, 'an approval could not be asked for')
      return { ok: false, content: `An approval of '${tool}' could not be asked for.` }
    } finally {
      this.#waiting.delete(key)
    }
  }

  /**
   * Leaves the run until everything is decided, if nothing else of it is under way: whoever goes on with it finds in its log what was
   * done. A run of which more is to be replayed than may be waits where it is.
   */
  async #leave(approvals: Approvals): Promise<void> {
    const { log } = this.#run
    const { claim } = this.#order
    if (log.lastSeq === this.#looked) return
    this.#looked = log.lastSeq
    if (!(await this.#run.flush())) return
    const past = await readReplay(this.#deps, claim)
    if (!past || past.bytes > maxReplayBytes || past.lastSeq !== log.lastSeq || !this.#areAll(past.replay)) return
    if (await this.#deps.store.park(claim, (tx) => approvals.left(tx, claim.runId))) this.#run.parked()
  }
  /** True when all calls without a result wait for people, as far as the log tells, and all that wait are in it. */
  #areAll(replay: Replay): boolean {
    const done = new Set(replay.flatMap((event) => (event.type === 'tool_result' ? [event.id] : [])))
    const open = replay.filter((event) => event.type === 'tool_call').filter(({ id }) => !done.has(id))
    const waiting = [...this.#waiting.values()]
    const known = new Set(waiting.flatMap(({ callId }) => (callId === undefined ? [] : [callId])))
    const unnamed = waiting.length - known.size
    return open.length === waiting.length && open.filter(({ id }) => !known.has(id)).length === unnamed
  }
}
