import type { Database } from '#contracts/database'
import type { RunStore } from '#contracts/run-store'
import { outcomeOf } from './backoff.ts'
import { messageBody } from './message.ts'
import type { Policy } from './policy.ts'
import type { Secrets } from './secrets.ts'
import { send } from './send.ts'
import type { Settled, Taken } from './store.ts'
import { currentVersion } from './versions.store.ts'

export interface AttemptDeps {
  readonly database: Database
  readonly store: Pick<RunStore, 'findRun'>
  readonly secrets: Secrets | undefined
  readonly policy: Policy
  readonly timeoutMs: number
  readonly stop: AbortSignal
}

/** One attempt to deliver a message: reads what it tells, signs it, posts it. */
export const createAttempt =
  ({ database, store, secrets, policy, timeoutMs, stop }: AttemptDeps) =>
  async (tenantId: string, message: Taken): Promise<Settled> => {
    const [run, { version, previousUntil }] = await Promise.all([
      store.findRun(tenantId, message.runId),
      currentVersion(database, tenantId),
    ])
    if (!run || !secrets) return { state: 'dead', status: undefined, error: 'There is nothing to tell any more.' }
    const body = messageBody(run)
    const timestamp = Math.floor(Date.now() / 1_000)
    const versions = previousUntil === null ? [version] : [version, version - 1]
    const headers = {
      'webhook-id': message.id,
      'webhook-timestamp': String(timestamp),
      'webhook-signature': secrets.sign(tenantId, versions, message.id, timestamp, body),
    }
    const answer = await send(policy, { url: message.url, headers, body }, timeoutMs, stop)
    // It was this server that gave up: another one goes on at once.
    if (stop.aborted && !answer.taken) return { state: 'pending', status: undefined, error: undefined, inMs: 0 }
    return outcomeOf(answer, message, Math.random())
  }
