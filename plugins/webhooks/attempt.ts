import { request } from 'undici'
import { isAppError } from '#kernel'
import type { Database } from '#contracts/database'
import type { RunSummary } from '#contracts/runs'
import type { FindRun } from '#contracts/webhooks'
import { ForbiddenAddressError } from '#kit/outbound'
import type { Policy } from './policy.ts'
import { signatures, type SigningSecrets } from './secrets.ts'
import { currentState } from './secrets.store.ts'
import type { Settled, TakenMessage } from './store.ts'

interface AttemptDeps {
  readonly database: Database
  readonly findRun: FindRun
  readonly secrets: SigningSecrets | undefined
  readonly policy: Policy
  readonly timeoutMs: number
  readonly stop: AbortSignal
}

/** Makes one attempt to deliver a message: reads its content, signs it and posts it. */
export const createAttempt =
  ({ database, findRun, secrets, policy, timeoutMs, stop }: AttemptDeps) =>
  async (tenantId: string, message: TakenMessage): Promise<Settled> => {
    const [told, state] = await Promise.all([bodyOf(tenantId, message, findRun), currentState(database, tenantId)])
    if (told === undefined || !secrets)
      return { state: 'dead', status: undefined, error: 'There is nothing to tell any more.' }
    const keys = await secrets.keys(tenantId, state).catch((error: unknown) => {
      if (isAppError(error)) return error
      throw error
    })
    // The tenant may repair its secret, so the message is retried as if the receiver had not been reached.
    if (isAppError(keys)) return outcomeOf(failed(keys.message), message, Math.random())
    const timestamp = Math.floor(Date.now() / 1_000)
    const headers = {
      'webhook-id': message.id,
      'webhook-timestamp': String(timestamp),
      'webhook-signature': signatures(keys, message.id, timestamp, told),
    }
    const answer = await send(policy, { tenantId, url: message.url, headers, body: told }, timeoutMs, stop)
    // This process is stopping and gave the attempt up. Another process may take the message at once.
    if (stop.aborted && !answer.taken) return { state: 'pending', status: undefined, error: undefined, inMs: 0 }
    return outcomeOf(answer, message, Math.random())
  }

/** The body of a message. Undefined: its run no longer exists. */
async function bodyOf(tenantId: string, { runId, body }: TakenMessage, findRun: FindRun): Promise<string | undefined> {
  if (body !== null) return body
  const run = runId === null ? undefined : await findRun(tenantId, runId)
  return run && messageBody(run)
}

/** A result with more characters is cut off. Receivers read the whole result from the run. */
const maxResultLength = 64 * 1024

/** Builds the body that reports an ended run. The same run gives the same bytes in every attempt. */
function messageBody(run: RunSummary): string {
  const { result, subTask, ...rest } = run
  const { prompt: _, ...task } = subTask
  return JSON.stringify({
    type: 'run.finished',
    timestamp: run.finishedAt,
    data: {
      ...rest,
      subTask: task,
      ...(result === undefined ? {} : { result: result.slice(0, maxResultLength) }),
      ...(result !== undefined && result.length > maxResultLength ? { resultTruncated: true } : {}),
    },
  })
}

interface Message {
  readonly tenantId: string
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  readonly body: string
}

interface Answer {
  readonly taken: boolean
  /** The receiver answered 410, so the message is not tried again. */
  readonly gone: boolean
  readonly status: number | undefined
  readonly error: string | undefined
  /** The pause that the receiver asked for with `retry-after`. */
  readonly retryAfterMs: number | undefined
}

const failed = (error: string, gone = false): Answer => ({
  taken: false,
  gone,
  status: undefined,
  error,
  retryAfterMs: undefined,
})

/** Posts one message. Never rejects: any answer other than 2xx counts as a failure, including a redirect. */
async function send(policy: Policy, message: Message, timeoutMs: number, stop: AbortSignal): Promise<Answer> {
  const signal = AbortSignal.any([stop, AbortSignal.timeout(timeoutMs)])
  try {
    // The address is checked again, because the operator may have changed the allowed hosts since it was accepted.
    const url = policy.check(message.tenantId, message.url)
    const { statusCode, headers, body } = await request(url, {
      method: 'POST',
      dispatcher: policy.agentFor(message.tenantId, url),
      headers: { ...message.headers, 'content-type': 'application/json', 'user-agent': 'agent-orc' },
      body: message.body,
      signal,
    })
    body.on('error', () => {}).destroy()
    const taken = statusCode >= 200 && statusCode < 300
    return {
      taken,
      gone: statusCode === 410,
      status: statusCode,
      error: taken ? undefined : `The receiver answered ${statusCode}.`,
      retryAfterMs: taken ? undefined : secondsOf(headers['retry-after']),
    }
  } catch (error) {
    if (isAppError(error)) return failed(error.message, true)
    return failed(explain(error, signal))
  }
}

const secondsOf = (value: unknown): number | undefined =>
  typeof value === 'string' && /^\d{1,6}$/.test(value) ? Number(value) * 1_000 : undefined

/** A sentence for the tenant. The text of an unknown error is left out, since it may name hosts inside the network. */
function explain(error: unknown, signal: AbortSignal): string {
  const { cause, code } = error as { cause?: unknown; code?: unknown }
  if (error instanceof ForbiddenAddressError || cause instanceof ForbiddenAddressError) {
    return 'The host resolves to an address that is not public.'
  }
  if (signal.aborted) return 'The receiver took too long.'
  return code === 'ENOTFOUND' ? 'There is no host of that name.' : 'The receiver could not be reached.'
}

const minute = 60_000
const hour = 60 * minute
/** Pauses between attempts in ms, as Standard Webhooks suggests. A receiver that is unreachable for a day loses nothing. */
export const schedule = [5_000, 5 * minute, 30 * minute, 2 * hour, 5 * hour, 10 * hour, 10 * hour] as const
/** The longest pause that a receiver may ask for. */
const maxPauseMs = 12 * hour

/** The new state of a message after an attempt. `random` in [0, 1) spreads the retries of messages that failed together. */
export function outcomeOf(answer: Answer, { attempt }: TakenMessage, random: number): Settled {
  const { status, error } = answer
  if (answer.taken) return { state: 'delivered', status, error }
  const wait = schedule[attempt - 1]
  if (answer.gone || wait === undefined) return { state: 'dead', status, error }
  const spread = wait * (1 + random * 0.1)
  return { state: 'pending', status, error, inMs: Math.min(Math.max(spread, answer.retryAfterMs ?? 0), maxPauseMs) }
}
