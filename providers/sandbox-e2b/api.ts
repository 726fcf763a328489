import type { ApiClient, components } from 'e2b'
import { askPatiently, type JsonAnswer, NoAnswer, neverConnected } from '#kit'

/** Milliseconds. Creating and resuming wait for a machine, so a request gets a minute, as in E2B's own clients. */
const requestMs = 60_000
/** Milliseconds for which a temporary failure of one call is retried. */
const patienceMs = 30_000
/** The largest page that E2B returns. */
const pageSize = 100

type Schemas = components['schemas']
export type NewSandbox = Schemas['NewSandbox']
/** E2B's answer when a sandbox starts or resumes. */
export type StartedSandbox = Schemas['Sandbox']
export type SandboxDetail = Schemas['SandboxDetail']

/** One request of E2B's client. It resolves to E2B's answer, including error answers. */
type Ask<T> = (
  rest: ApiClient['api'],
  signal: AbortSignal,
) => Promise<{ readonly data?: T; readonly error?: unknown; readonly response: Response }>

interface CallOptions {
  readonly repeatable?: boolean
  readonly signal?: AbortSignal | undefined
}

/**
 * The part of E2B's REST API that is used here, called through the client of E2B's package. The package's `Sandbox` class is not used: it never
 * retries, and it tells a failure of E2B from one of a proxy only by its text. Rejects with `E2bError` when E2B refuses, and with `NoAnswer` when
 * E2B cannot be reached.
 */
export class E2bApi {
  readonly #rest: ApiClient['api']
  readonly #stopping: AbortSignal

  constructor({ api }: ApiClient, stopping: AbortSignal) {
    this.#rest = api
    this.#stopping = stopping
  }

  /** One attempt, unless E2B certainly refused to start a sandbox: a lost request may have been carried out. */
  create(body: NewSandbox): Promise<StartedSandbox> {
    return this.#call((rest, signal) => rest.POST('/sandboxes', { body, signal }), { repeatable: false })
  }

  detail(sandboxID: string, signal?: AbortSignal): Promise<SandboxDetail> {
    const ask: Ask<SandboxDetail> = (rest, either) =>
      rest.GET('/sandboxes/{sandboxID}', { params: { path: { sandboxID } }, signal: either })
    return this.#call(ask, { signal })
  }

  /** The ids of running and paused sandboxes that have all of these labels. */
  async find(labels: Readonly<Record<string, string>>): Promise<string[]> {
    // E2B expects the labels encoded by themselves, and once more as part of the URL.
    const pairs = Object.entries(labels).map((pair) => pair.map(encodeURIComponent) as [string, string])
    const query = { metadata: new URLSearchParams(pairs).toString(), state: states, limit: pageSize }
    const found: string[] = []
    let next: string | undefined
    do {
      const nextToken = next
      const page = await this.#call(async (rest, signal) => {
        const params = { query: nextToken === undefined ? query : { ...query, nextToken } }
        const answer = await rest.GET('/v2/sandboxes', { params, signal })
        next = answer.response.headers.get('x-next-token') || undefined
        return answer
      })
      found.push(...page.map(({ sandboxID }) => sandboxID))
      if (next === nextToken) break
    } while (next !== undefined)
    return found
  }

  /** Resumes a paused sandbox, or extends the time of a running one. */
  connect(sandboxID: string, timeout: number): Promise<StartedSandbox> {
    const options = { params: { path: { sandboxID } }, body: { timeout } }
    return this.#call((rest, signal) => rest.POST('/sandboxes/{sandboxID}/connect', { ...options, signal }))
  }

  async setTimeout(sandboxID: string, timeout: number): Promise<void> {
    const options = { params: { path: { sandboxID } }, body: { timeout } }
    await this.#call((rest, signal) => rest.POST('/sandboxes/{sandboxID}/timeout', { ...options, signal }))
  }

  async pause(sandboxID: string): Promise<void> {
    const params = { path: { sandboxID } }
    await this.#call((rest, signal) => rest.POST('/sandboxes/{sandboxID}/pause', { params, signal }))
  }

  async kill(sandboxID: string): Promise<void> {
    const params = { path: { sandboxID } }
    await this.#call((rest, signal) => rest.DELETE('/sandboxes/{sandboxID}', { params, signal }))
  }

  async #call<T>(ask: Ask<T>, { repeatable = true, signal }: CallOptions = {}): Promise<T> {
    const given = signal ? AbortSignal.any([this.#stopping, signal]) : this.#stopping
    const once = async (): Promise<JsonAnswer> => {
      given.throwIfAborted()
      try {
        const { data, error, response } = await ask(
          this.#rest,
          AbortSignal.any([given, AbortSignal.timeout(requestMs)]),
        )
        return { status: response.status, headers: Object.fromEntries(response.headers), body: data ?? error }
      } catch (cause) {
        given.throwIfAborted()
        const { message, cause: reason } = cause as Error
        throw new NoAnswer(`E2B: ${message}`, !neverConnected(reason), cause)
      }
    }
    const answer = await askPatiently(once, { repeatable, withinMs: patienceMs, signal: given })
    if (answer.status >= 200 && answer.status < 300) return answer.body as T
    throw new E2bError(answer)
  }
}

const states: Schemas['SandboxState'][] = ['running', 'paused']

/** E2B refused the request. Its text is only for the log and never leaves the runner unchanged. */
export class E2bError extends Error {
  readonly status: number
  /** True when the message comes from E2B itself, not from a proxy in front of it. */
  readonly itsOwn: boolean
  constructor({ status, body }: JsonAnswer) {
    const { code, message } = (body ?? {}) as { readonly code?: unknown; readonly message?: unknown }
    super(`E2B answered ${status}${typeof message === 'string' ? `: ${message.slice(0, 500)}` : ''}`)
    this.name = 'E2bError'
    this.status = status
    this.itsOwn = typeof code === 'number'
  }
}

export const isNotFound = (error: unknown): boolean => error instanceof E2bError && error.status === 404
export const isConflict = (error: unknown): boolean => error instanceof E2bError && error.status === 409
