import { setTimeout as sleep } from 'node:timers/promises'
import { type AppError, isAppError } from '#kernel'
import type { LogChunk, RunDispatch, RunSummary, StartedRun, SubTask } from '#contracts/runs'
import { readJson, type Reply } from '#kit'
import type { Conductor } from './conductor.ts'
import { conductorUnreachable, ConnectionLost, refusal } from './errors.ts'
import { follow } from './follow.ts'

/** A dispatch is tried again for this long: a conductor that restarts, and a chat that survives it, are worth a person's wait. */
const defaultPatienceMs = 10_000
const pauseMs = { first: 100, longest: 800 }
const maxBodyBytes = 64 * 1024
/** A run's answer may be long; its events are not asked for. */
const maxSummaryBytes = 8 * 1024 * 1024
const questionMs = 5_000

const runPath = (runId: string): string => `/api/runs/${encodeURIComponent(runId)}`

/** Runs of a conductor in another process, over its signed internal listener. Specification 5.3. */
export function createDispatch(
  conductor: Conductor,
  about: Readonly<Record<string, unknown>>,
  patienceMs = defaultPatienceMs,
): RunDispatch {
  const within = (): AbortSignal => AbortSignal.timeout(questionMs)

  /** Same id in every attempt: after a lost answer the conductor attaches to the run that exists. */
  const submit = async (tenantId: string, body: Uint8Array, signal: AbortSignal): Promise<Reply> => {
    const until = performance.now() + patienceMs
    for (let pause = pauseMs.first; ; pause = Math.min(pause * 2, pauseMs.longest)) {
      let failure: AppError
      try {
        const reply = await conductor.call({
          tenantId,
          method: 'POST',
          path: '/api/runs',
          body,
          accept: 'application/x-ndjson',
          signal,
        })
        if (reply.status === 202) return reply
        failure = refusal(reply.status, await readJson(reply, maxBodyBytes))
        if (!failure.retryable) throw failure
      } catch (error) {
        if (!(error instanceof ConnectionLost)) throw error
        failure = conductorUnreachable({ cause: error })
      }
      if (performance.now() >= until) throw failure
      await sleep(pause, undefined, { signal })
    }
  }

  /** A question whose answer is small; everything that is no answer is `upstream`. */
  const ask = async (tenantId: string, method: 'GET' | 'DELETE', path: string): Promise<Reply> => {
    try {
      return await conductor.call({ tenantId, method, path, signal: within() })
    } catch (cause) {
      throw isAppError(cause) ? cause : conductorUnreachable({ cause })
    }
  }

  const find = async (tenantId: string, runId: string): Promise<RunSummary | undefined> => {
    const reply = await ask(tenantId, 'GET', `${runPath(runId)}?events=false`)
    const body = await readJson(reply, maxSummaryBytes)
    if (reply.status === 404) return undefined
    if (reply.status !== 200) throw refusal(reply.status, body)
    if (!isSummary(body)) throw conductorUnreachable({ message: 'The conductor sent no run summary.' })
    return body
  }
  const followRun = (
    tenantId: string,
    runId: string,
    afterSeq: number,
    signal: AbortSignal,
    first?: Reply,
  ): AsyncGenerator<LogChunk> =>
    follow(conductor, {
      tenantId,
      runId,
      afterSeq,
      signal,
      find: () => find(tenantId, runId),
      ...(first ? { first } : {}),
    })

  return {
    about,
    async start(tenantId: string, task: SubTask & { id: string }, signal: AbortSignal): Promise<StartedRun> {
      const reply = await submit(tenantId, Buffer.from(JSON.stringify(task)), signal)
      const isLog = String(reply.headers['content-type']).startsWith('application/x-ndjson')
      const accepted = isLog ? undefined : await readJson(reply, maxBodyBytes)
      const sessionId = accepted?.['sessionId'] ?? reply.headers['x-session-id']
      if (typeof sessionId !== 'string') throw conductorUnreachable({ message: 'The conductor named no session.' })
      const events = followRun(tenantId, task.id, 0, signal, isLog ? reply : undefined)
      return { runId: task.id, sessionId, status: 'running', events }
    },
    follow: followRun,
    find,
    async cancel(tenantId, runId) {
      const reply = await ask(tenantId, 'DELETE', runPath(runId))
      const body = await readJson(reply, maxBodyBytes)
      // Unknown there: nothing runs.
      if (reply.status !== 204 && reply.status !== 404) throw refusal(reply.status, body)
    },
    // A run that cannot exist: the answer proves the way there, the keys and the conductor's database in one question.
    async ping() {
      const reply = await ask('default', 'GET', `${runPath('readiness')}?events=false`)
      const body = await readJson(reply, maxBodyBytes)
      if (reply.status !== 404 && reply.status !== 200) throw refusal(reply.status, body)
    },
  }
}

/** What is read of it; the conductor is a peer, and its schema is checked where the summary is made. */
const isSummary = (body: object | undefined): body is RunSummary => {
  const { runId, sessionId, status } = (body ?? {}) as Record<string, unknown>
  return typeof runId === 'string' && typeof sessionId === 'string' && typeof status === 'string'
}
