import { request } from 'undici'
import { isAppError } from '#kernel'
import { ForbiddenAddressError } from '#kit/outbound'
import type { Policy } from './policy.ts'

export interface Message {
  readonly url: string
  readonly headers: Readonly<Record<string, string>>
  readonly body: string
}

export interface Answer {
  readonly taken: boolean
  /** The receiver wants no more: another attempt is no use. */
  readonly gone: boolean
  readonly status: number | undefined
  readonly error: string | undefined
  /** When the receiver asks for a pause. */
  readonly retryAfterMs: number | undefined
}

const failed = (error: string, gone = false): Answer => ({
  taken: false,
  gone,
  status: undefined,
  error,
  retryAfterMs: undefined,
})

/** Posts one message. Resolves whatever happens: an answer that is not 2xx, a redirect too, is a failure. */
export async function send(policy: Policy, message: Message, timeoutMs: number, stop: AbortSignal): Promise<Answer> {
  const signal = AbortSignal.any([stop, AbortSignal.timeout(timeoutMs)])
  try {
    // The operator may have changed what is allowed since the address was accepted.
    const url = policy.check(message.url)
    const { statusCode, headers, body } = await request(url, {
      method: 'POST',
      dispatcher: policy.agentFor(url),
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

/** A sentence for the tenant; the text of an unknown error may name what lies inside the network. */
function explain(error: unknown, signal: AbortSignal): string {
  const { cause, code } = error as { cause?: unknown; code?: unknown }
  if (error instanceof ForbiddenAddressError || cause instanceof ForbiddenAddressError) {
    return 'The host resolves to an address that is not public.'
  }
  if (signal.aborted) return 'The receiver took too long.'
  return code === 'ENOTFOUND' ? 'There is no host of that name.' : 'The receiver could not be reached.'
}
