import { Agent, type Dispatcher } from 'undici'
import { appErrors } from '#contracts/apps'
import { askJson, askPatiently, type JsonAnswer, NoAnswer } from '#kit'
import { guardedLookup, outboundUrl, permittedAddresses, systemResolve } from '#kit/outbound'

const defaultUrl = 'https://backend.composio.dev'

/** Milliseconds that one request may take, and milliseconds for which a repeatable request is retried. */
const requestMs = 50_000
const patienceMs = 8_000

interface ComposioRequest {
  readonly method: Dispatcher.HttpMethod
  /** The path below `/api`, including the version. */
  readonly path: string
  readonly apiKey: string
  readonly body?: unknown
  /** The request may be sent twice. */
  readonly repeatable: boolean
  readonly signal: AbortSignal
}

/** The part of Composio's HTTP API that is used here. */
export class ComposioClient {
  readonly #origin: string
  readonly #agent: Agent

  /** Throws for a URL that must not be called. */
  constructor(baseUrl: string = defaultUrl) {
    const own = baseUrl !== defaultUrl
    // Hosts that the operator names may have private addresses.
    const permits = permittedAddresses[own ? 'network' : 'public']
    const url = outboundUrl(baseUrl, { permits, schemes: own ? ['https', 'http'] : ['https'] })
    if (typeof url === 'string') throw new Error(`apps-composio: baseUrl cannot be used (${url})`)
    this.#origin = url.origin
    this.#agent = new Agent({
      connect: { timeout: 10_000, lookup: guardedLookup(systemResolve, permits) },
      connections: 64,
    })
  }

  /** Resolves to any answer below 500. Otherwise, and when the key is refused, rejects with `app_unavailable` (502). */
  async ask({ method, path, apiKey, body, repeatable, signal }: ComposioRequest): Promise<JsonAnswer> {
    const ask = (): Promise<JsonAnswer> =>
      askJson(this.#agent, {
        method,
        origin: this.#origin,
        path: `/api${path}`,
        headers: { 'x-api-key': apiKey },
        ...(body === undefined ? {} : { body }),
        timeoutMs: requestMs,
        signal,
      })
    try {
      const answer = await askPatiently(ask, { repeatable, withinMs: patienceMs, signal })
      const { status } = answer
      if (status === 401 || status === 403) throw unavailable('Composio does not accept the API key of this server.')
      if (status === 429) throw unavailable('Composio limits the requests of this server; try again shortly.')
      if (status >= 500 || answer.body === undefined) throw unavailable(`Composio answered ${status}.`)
      return answer
    } catch (cause) {
      if (cause instanceof NoAnswer) throw unavailable('Composio cannot be reached.', cause)
      throw signal.aborted ? unavailable('Composio did not answer in time.', cause) : cause
    }
  }
  close(): Promise<void> {
    return this.#agent.destroy()
  }
}

export const unavailable = (message: string, cause?: unknown) => appErrors.appUnavailable({ cause, message })
