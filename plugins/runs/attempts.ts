import type { Profile } from '#contracts/profiles'
import type { EndReason, Orphan } from '#contracts/run-store'
import type { Ending } from './runner-events.ts'
import { defaultTimeoutSeconds } from './timing.ts'

const defaultAttempts = 3
/** Before the second, third, … attempt: a process that is started again needs a moment, and more of them need longer. */
const backoffMs = [500, 2_000, 5_000] as const

/** Whatever executed the run is gone or was not there. Anything that a runtime says itself is an answer, and is kept. */
const lost: ReadonlySet<string> = new Set([
  'runner_lost',
  'runner_unreachable',
  'runner_failed',
  'runner_draining',
  'runner_stopping',
  'no_runner',
  'hydration_failed',
  'sidecar_lost',
  'sidecar_unreachable',
  // A sidecar's or runner's orderly stop, when the run did not end within its grace.
  'interrupted',
])

export const isLost = (ending: Ending): boolean => ending.status === 'error' && lost.has(ending.code)

export const timeoutMsOf = ({ limits }: Profile): number => (limits.timeoutSeconds ?? defaultTimeoutSeconds) * 1_000

/** How often a run of this profile may be begun, and when again. */
export interface AttemptPolicy {
  /** Milliseconds to wait after `attempt` was lost; undefined: it was the last one. */
  waitAfter(attempt: number, remainingMs: number): number | undefined
  readonly most: number
}

export function policyOf({ onCrash, limits }: Profile): AttemptPolicy {
  const most = onCrash === 'retry' ? (limits.maxAttempts ?? defaultAttempts) : 1
  return {
    most,
    waitAfter(attempt, remainingMs) {
      if (attempt >= most) return undefined
      const wait = backoffMs[Math.min(attempt, backoffMs.length) - 1]!
      return wait < remainingMs ? wait : undefined
    },
  }
}

/** What people read when the last attempt is lost too. */
export const afterAttempts = (message: string, attempt: number): string =>
  attempt === 1 ? message : `${message} It was tried ${attempt} times.`

const ownerDied = 'The server that executed this run went away before it ended.'

/** Why a run is begun again, or ended, after its conductor died. */
export const orphaned = (attempt: number): EndReason => ({
  code: 'interrupted',
  message: afterAttempts(ownerDied, attempt),
})

/** Whether another conductor goes on with a run whose owner died. */
export function mayGoOn({ session, attempt, elapsedMs }: Orphan): boolean {
  return attempt < policyOf(session.profile).most && elapsedMs < timeoutMsOf(session.profile)
}
