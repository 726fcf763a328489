import { isAppError, unavailable } from '#kernel'
import type { Caller } from '#contracts/auth'
import type { Idempotency } from '#contracts/idempotency'
import { newId } from '#contracts/ids'
import { RunAccepted, type SubTask } from '#contracts/runs'
import type { RunService } from './service.ts'

export interface Started {
  readonly accepted: RunAccepted
  /** An earlier request of the same key started it. */
  readonly replayed: boolean
}

/** Starts a run, and with an `Idempotency-Key` only once: the run's id is kept with the key before anything begins. */
export type StartOnce = (caller: Caller, task: SubTask, key: string | undefined) => Promise<Started>

export const startOnce =
  (service: RunService, attach: boolean, idempotency?: Idempotency): StartOnce =>
  async ({ tenantId, keyId }, task, key) => {
    if (key === undefined) return { accepted: await service.start(tenantId, task, attach), replayed: false }
    // To ignore the key would be to start a second run for a request that was repeated in good faith.
    if (!idempotency) throw unavailable({ message: 'This server keeps no Idempotency-Keys: it has no database.' })
    const plan = { runId: task.id ?? newId('run') }
    const attempt = await idempotency.begin({ tenantId, scope: `${keyId} runs`, key, body: task, plan })
    const { answer, repeated } = attempt
    if (answer) return { accepted: answer.body as RunAccepted, replayed: true }
    try {
      const accepted = await service.start(tenantId, { ...task, id: attempt.plan.runId }, attach || repeated)
      await attempt.end({ status: 202, body: accepted })
      return { accepted, replayed: false }
    } catch (error) {
      // A refusal began nothing. After any other failure the run may exist: the next request of the key joins it.
      const refused = isAppError(error) && error.code !== 'unavailable'
      await (refused ? attempt.forget() : attempt.end())
      throw error
    }
  }
