import { setTimeout as sleep } from 'node:timers/promises'
import { isAppError } from '#kernel'
import type { DispatchTask, RunDispatch, StartedRun } from '#contracts/runs'
import { conductorWire, sessionIdHeader } from '#contracts/wire/conductor'
import type { LinesAnswer, Peer } from '#kit'
import { ConductorLost, meaningOf, unexpected, upstream } from './errors.ts'
import { follow } from './follow.ts'

/** A dispatch is tried again for this long: a conductor that restarts, and a chat that survives it, are worth a person's wait. */
const defaultPatienceMs = 10_000
const pauseMs = { first: 100, longest: 800 }
/** For what has a short answer. */
const questionMs = 5_000

/** Runs of a conductor in another process, over its signed internal listener. Specification 5.3. */
export function createDispatch(
  conductor: Peer,
  about: Readonly<Record<string, unknown>>,
  patienceMs = defaultPatienceMs,
): RunDispatch {
  /** Same id in every attempt: after a lost answer the conductor attaches to the run that exists. */
  const submit = async (
    tenant: string,
    body: DispatchTask,
    after: number,
    signal: AbortSignal,
  ): Promise<LinesAnswer> => {
    const query = after > 0 ? { after } : {}
    const until = performance.now() + patienceMs
    let begun = false
    for (let pause = pauseMs.first; ; pause = Math.min(pause * 2, pauseMs.longest)) {
      try {
        return await conductor.ask(conductorWire.start, { tenant, body, query, signal })
      } catch (error) {
        signal.throwIfAborted()
        if (!isAppError(error)) throw error
        const failure = meaningOf(error)
        begun ||= !failure.retryable
        if (!failure.retryable && !(error instanceof ConductorLost)) throw failure
        // Once an attempt may have begun the run, none that follows can say that there is none.
        if (performance.now() >= until) throw upstream({ cause: error, retryable: !begun })
      }
      await sleep(pause, undefined, { signal })
    }
  }

  const find: RunDispatch['find'] = (tenant, id) =>
    answered(
      conductor.ask(conductorWire.find, { tenant, params: { id }, query: { events: false }, timeoutMs: questionMs }),
    )

  return {
    about,
    async start(tenantId, task, afterSeq, signal): Promise<StartedRun> {
      const first = await submit(tenantId, task, afterSeq, signal)
      const sessionId = first.headers[sessionIdHeader]
      if (typeof sessionId !== 'string') throw unexpected({ message: 'The conductor named no session.' })
      const events = follow(conductor, { tenantId, runId: task.id, afterSeq, signal, first })
      return { runId: task.id, sessionId, status: 'running', events }
    },
    follow: (tenantId, runId, afterSeq, signal) => follow(conductor, { tenantId, runId, afterSeq, signal }),
    find,
    async cancel(tenant, id) {
      // Unknown there: nothing runs.
      await answered(conductor.ask(conductorWire.cancel, { tenant, params: { id }, timeoutMs: questionMs }))
    },
    // A run that cannot exist: the answer proves the way there, the keys and the conductor's database in one question.
    async ping() {
      await find('default', 'readiness')
    },
  }
}

/** A question whose answer is small; everything that is no answer is `upstream`. */
const answered = <T>(question: Promise<T>): Promise<T> =>
  question.catch((cause: unknown) => {
    throw isAppError(cause) ? meaningOf(cause) : upstream({ cause })
  })
