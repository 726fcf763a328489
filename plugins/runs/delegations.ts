import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { Delegation, DelegationAnswer } from '#contracts/delegation'
import type { RunnerLink } from '#contracts/runner'
import { isTerminal, type RunSummary } from '#contracts/runs'
import type { RunService } from './service.ts'

/** Money that a run and those it delegates to may cost together, in cents. What has no known price costs nothing here. */
export interface Budget {
  /** Undefined: there is no limit. */
  left(): number | undefined
  /** What was spent is more than the limit. */
  isExceeded(): boolean
  /** Of a child run that is over. */
  spend(costCents: number | undefined): void
}

/** `own` is what the run itself has cost so far. */
export function createBudget(limits: readonly (number | undefined)[], own: () => number | undefined): Budget {
  const given = limits.filter((limit) => limit !== undefined)
  const limit = given.length === 0 ? undefined : Math.min(...given)
  let children = 0
  const spent = (): number => children + (own() ?? 0)
  return {
    left: () => (limit === undefined ? undefined : Math.max(0, limit - spent())),
    isExceeded: () => limit !== undefined && spent() > limit,
    spend(costCents = 0) {
      children += costCents
    },
  }
}

export interface DelegationLimits {
  /** A run that this many delegations led to delegates nothing. */
  readonly maxDepth: number
  /** Child runs of one run. */
  readonly maxChildren: number
}

/** The run that delegates. */
export interface DelegatingRun {
  readonly tenantId: string
  readonly runId: string
  readonly sessionId: string
  readonly depth: number
  /** Profiles it may delegate to; any unless given. */
  readonly delegates: readonly string[] | undefined
  readonly budget: Budget
  /** Its children have cost more than was left. */
  onExceeded(): void
}

/** The child runs of one run: started for its tool calls, and ended with it. */
export interface Delegations {
  /** The runner of the run says that a tool waits. */
  look(link: RunnerLink): void
  /** The run is over: children that are still under way are cancelled. */
  close(): void
}

export type ChildRuns = Pick<RunService, 'start' | 'follow' | 'find' | 'cancel'>

export function createDelegations(
  children: ChildRuns,
  limits: DelegationLimits,
  parent: DelegatingRun,
  log: FastifyBaseLogger,
): Delegations {
  const { tenantId, runId, sessionId, depth, delegates, budget } = parent
  const seen = new Set<string>()
  const over = new AbortController()
  let looking = false
  let wanted: RunnerLink | undefined

  const refusal = ({ profile }: Delegation): string | undefined => {
    if (depth >= limits.maxDepth) return 'This task was delegated itself too often: it cannot be delegated further.'
    if (seen.size > limits.maxChildren) return `One run delegates at most ${limits.maxChildren} tasks.`
    if (delegates && !delegates.includes(profile)) {
      return `This agent may not delegate to '${profile}'; it may to: ${delegates.join(', ') || 'nobody'}.`
    }
    return budget.left() === 0 ? 'The budget of this run is used up.' : undefined
  }
  /** The child run's last word. */
  const runOf = async ({ runId: id, profile, prompt }: Delegation): Promise<RunSummary> => {
    const left = budget.left()
    const parentOf = { runId, depth: depth + 1, ...(left === undefined ? {} : { budgetCents: left }) }
    // A call that is repeated finds the run that the first one has started.
    await children.start(tenantId, { id, profile, prompt, parent: parentOf })
    const leave = (): void => void children.cancel(tenantId, id).catch(() => {})
    over.signal.addEventListener('abort', leave, { once: true })
    try {
      if (over.signal.aborted) leave()
      for await (const _ of children.follow(tenantId, id, 0, over.signal));
      return await children.find(tenantId, id)
    } finally {
      over.signal.removeEventListener('abort', leave)
    }
  }
  const answerTo = async (delegation: Delegation): Promise<DelegationAnswer> => {
    const refused = refusal(delegation)
    if (refused !== undefined) return { ok: false, content: refused }
    try {
      const { status, result, error, costCents } = await runOf(delegation)
      budget.spend(costCents)
      const cost = costCents === undefined ? {} : { costCents }
      if (status === 'ok') return { ok: true, content: result ?? '', status, ...cost }
      const why = isTerminal(status) ? (error?.message ?? `It ended as ${status}.`) : 'It was left.'
      return { ok: false, content: `The task was not done: ${why}`, status, ...cost }
    } catch (err) {
      if (isAppError(err)) return { ok: false, content: `The task was not started: ${err.sentence ?? err.code}` }
      log.warn({ err, runId }, 'a delegated run failed')
      return { ok: false, content: 'The task could not be started.' }
    }
  }
  const take = async (delegation: Delegation, link: RunnerLink): Promise<void> => {
    const answer = await answerTo(delegation)
    if (budget.isExceeded()) parent.onExceeded()
    if (over.signal.aborted) return
    // Its runner is gone: then this run ends too, or is tried again and asks anew.
    await link.answerDelegation(tenantId, sessionId, delegation.id, answer).catch((err: unknown) => {
      log.warn({ err, runId }, 'a delegation could not be answered')
    })
  }
  const look = async (link: RunnerLink): Promise<void> => {
    for (const delegation of await link.delegations(tenantId, sessionId)) {
      if (over.signal.aborted || delegation.parentRunId !== runId || seen.has(delegation.id)) continue
      seen.add(delegation.id)
      void take(delegation, link)
    }
  }
  /** One after the other: a second look must not start what the first is about to. */
  const lookOn = async (): Promise<void> => {
    looking = true
    for (let link = wanted; link && !over.signal.aborted; link = wanted) {
      wanted = undefined
      await look(link).catch((err: unknown) =>
        log.warn({ err, runId }, 'the delegations of a runner could not be read'),
      )
    }
    looking = false
  }
  return {
    look(link) {
      // However often a worker says so while one is under way: what that one misses, one more finds.
      wanted = link
      if (!looking) void lookOn()
    },
    // A reason of its own: without one each run would make an error, with its stack, for children that most runs do not have.
    close: () => over.abort('the run is over'),
  }
}
