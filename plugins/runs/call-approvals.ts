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

/**
 * Milliseconds between two looks at a call that waits while its run cannot be parked. The first looks are close together, because the run's events
 * are still arriving.
 */
const looksMs = [20, 50, 100, 250, 500, 1_000, 2_000] as const

export interface CallApprovalsDeps {
  readonly store: RunStore
  /** Undefined: this role has no approvals, so nobody can approve a call. */
  readonly approvals: Approvals | undefined
  readonly log: FastifyBaseLogger
  readonly givingUp: AbortSignal
}

type Call = ApprovalCall['approval']

/** The parts of a run that parking it needs. */
interface Leaving {
  readonly log: { readonly lastSeq: number }
  /** Stores the run's pending events. False: another process holds the claim. */
  flush(): Promise<boolean>
  /** Called once the store has parked the run, so that no conductor executes it. */
  parked(): void
}

/** The calls of one run that wait for people. */
export class CallApprovals {
  readonly #deps: CallApprovalsDeps
  readonly #order: OrderedRun
  readonly #run: Leaving
  readonly #waiting = new Map<string, Call>()
  /** The `seq` of the last event at the previous look, so that an unchanged log is not read again. */
  #looked = 0

  constructor(deps: CallApprovalsDeps, order: OrderedRun, run: Leaving) {
    this.#deps = deps
    this.#order = order
    this.#run = run
  }

  /** The decisions on the run's calls, for the next conductor that executes the run. */
  async decided(): Promise<Pick<ExecuteRun, 'decided'>> {
    const { claim, session } = this.#order
    if (!this.#deps.approvals || !hasApprovals(session.profile)) return {}
    return { decided: await this.#deps.approvals.decided(claim.tenantId, claim.runId) }
  }

  /**
   * Answers whether a call may be made. Usually the run is parked before people decide, `over` aborts, and the call asks again when the run
   * resumes. A run that cannot be parked waits here.
   */
  async answer({ approval }: ApprovalCall, over: AbortSignal): Promise<DelegationAnswer> {
    const { approvals } = this.#deps
    const { claim, task, session } = this.#order
    const { profile } = session
    const { key, tool } = approval
    // Trust the profile, not the runner: a call waits only if the conductor's copy of the profile says so.
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
   * Parks the run until every call is decided, provided that nothing else of the run is under way. The next conductor finds in the log what was
   * finished. A run whose replay would exceed `maxReplayBytes` is not parked and waits in this process.
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
  /** True when the log shows that every call without a result waits for people, and that every waiting call is in the log. */
  #areAll(replay: Replay): boolean {
    const done = new Set(replay.flatMap((event) => (event.type === 'tool_result' ? [event.id] : [])))
    const open = replay.filter((event) => event.type === 'tool_call').filter(({ id }) => !done.has(id))
    const waiting = [...this.#waiting.values()]
    const known = new Set(waiting.flatMap(({ callId }) => (callId === undefined ? [] : [callId])))
    const unnamed = waiting.length - known.size
    return open.length === waiting.length && open.filter(({ id }) => !known.has(id)).length === unnamed
  }
}
