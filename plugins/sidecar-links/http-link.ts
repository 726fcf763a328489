import { type Dispatcher, Pool } from 'undici'
import { AppError, wholeLines } from '#kernel'
import type { StateBundle } from '#contracts/runtime'
import type { SidecarHealth, SidecarLink } from '#contracts/sidecar'
import { runtimeSessionIdHeader, workerInstanceHeader } from '#contracts/wire/sidecar'
import { noStateRoutes, sidecarUnreachable, stateTooLarge } from './errors.ts'
import { exchange, readBody, type Reply } from './exchange.ts'

/** Largest state bundle that a runner takes. Specification 7: the runner's state-bundle size cap. */
const maxStateBytes = 64 * 1024 * 1024
/** A refusal or a health body longer than this is not one. */
const maxSmallBytes = 64 * 1024
const healthMs = 2_000
const connectMs = 5_000
/** State operations may pack or unpack an archive. */
const stateMs = 60_000
/** A sidecar answers the headers of a run at once. */
const headersMs = 60_000

/** Runtimes of a sidecar that says `all` and lists nothing: the specification's three. */
export const standardRuntimes = ['general', 'runtime_a', 'runtime_b'] as const

export interface HttpSidecar extends SidecarLink {
  close(): Promise<void>
}

/** A sidecar at a base URL, by the wire API of specification 4.23. */
export function createHttpSidecar(url: string): HttpSidecar {
  const base = new URL(url)
  const prefix = base.pathname.replace(/\/+$/, '')
  // No bound on connections: one open run holds one, and a bounded pool would queue a stream behind another. Runs are
  // bounded where they are admitted. The body may stay silent as long as the model does: the run has its own deadline.
  const pool = new Pool(base.origin, {
    connections: null,
    pipelining: 1,
    bodyTimeout: 0,
    headersTimeout: headersMs,
    connect: { timeout: connectMs },
  })
  const statePath = (runtime: string, sessionId: string): string =>
    `${prefix}/state/${encodeURIComponent(sessionId)}?runtime=${encodeURIComponent(runtime)}`
  /** A short exchange, body included, within its time. */
  const call = async (
    ms: number,
    options: Pick<Dispatcher.DispatchOptions, 'path' | 'method' | 'headers' | 'body'>,
    { maxBytes = maxSmallBytes, signal }: { maxBytes?: number; signal?: AbortSignal } = {},
  ): Promise<Answer> => {
    const limit = AbortSignal.timeout(ms)
    try {
      const reply = await exchange(pool, options, signal ? AbortSignal.any([signal, limit]) : limit)
      return { status: reply.status, headers: reply.headers, bytes: await readBody(reply.body, maxBytes) }
    } catch (cause) {
      throw limit.aborted ? sidecarUnreachable({ cause, retryable: true }) : cause
    }
  }
  return {
    async health(signal) {
      const answer = await call(healthMs, { path: `${prefix}/health`, method: 'GET' }, signal ? { signal } : {})
      if (answer.status !== 200) throw refusal(answer)
      return healthOf(answer)
    },
    async *run(envelope, signal) {
      const { status, headers, body } = await exchange(
        pool,
        {
          path: `${prefix}/run`,
          method: 'POST',
          headers: { 'content-type': 'application/json', accept: 'application/x-ndjson' },
          body: JSON.stringify(envelope),
        },
        signal,
      )
      if (status !== 200) throw refusal({ status, headers, bytes: await readBody(body, maxSmallBytes) })
      yield* wholeLines(body)
    },
    async exportState(runtime, sessionId) {
      const path = statePath(runtime, sessionId)
      const answer = await call(stateMs, { path, method: 'GET' }, { maxBytes: maxStateBytes })
      if (answer.status === 404) return undefined
      if (answer.status !== 200) throw refusal(answer)
      if (!answer.bytes) throw stateTooLarge()
      return bundleOf(answer.bytes, answer)
    },
    async hydrate(runtime, sessionId, bundle) {
      const headers = {
        'content-type': bundle.contentType,
        ...(bundle.runtimeSessionId === undefined ? {} : { [runtimeSessionIdHeader]: bundle.runtimeSessionId }),
      }
      const path = statePath(runtime, sessionId)
      const answer = await call(stateMs, { path, method: 'POST', headers, body: bundle.bytes })
      // Of a hydration 404 means an unknown profile or session (specification 4.22), which this is not.
      if (answer.status === 404) throw noStateRoutes()
      if (answer.status !== 204) throw refusal(answer)
    },
    async forget(runtime, sessionId) {
      const answer = await call(stateMs, { path: statePath(runtime, sessionId), method: 'DELETE' })
      // The specification asks a sidecar for GET and POST only: one that cannot forget has nothing to answer for. Servers that know
      // no DELETE say 501.
      if (answer.status >= 500 && answer.status !== 501) throw refusal(answer)
    },
    close: () => pool.destroy(),
  }
}

interface Answer extends Omit<Reply, 'body'> {
  /** Undefined when the body was longer than its limit. */
  readonly bytes: Buffer | undefined
}

function healthOf({ bytes, headers }: Answer): SidecarHealth {
  const said = json(bytes)
  const header = headers[workerInstanceHeader]
  if (said?.['ok'] !== true || typeof said['runtime'] !== 'string') {
    throw sidecarUnreachable({ message: 'The sidecar answers, but not as a sidecar: check its URL.' })
  }
  const listed = said['runtimes']
  const runtimes = Array.isArray(listed)
    ? listed.filter((name): name is string => typeof name === 'string')
    : said['runtime'] === 'all'
      ? standardRuntimes
      : [said['runtime']]
  return {
    ...said,
    ok: true,
    runtime: said['runtime'],
    runtimes,
    // The specification asks for the header; the body's field is ours.
    instance: typeof said['instance'] === 'string' ? said['instance'] : typeof header === 'string' ? header : '',
    inflight: typeof said['inflight'] === 'number' ? said['inflight'] : 0,
  }
}

function bundleOf(bytes: Buffer, { headers }: Answer): StateBundle {
  const contentType = headers['content-type']
  const runtimeSessionId = headers[runtimeSessionIdHeader]
  return {
    bytes,
    contentType: typeof contentType === 'string' ? contentType : 'application/octet-stream',
    ...(typeof runtimeSessionId === 'string' && runtimeSessionId !== '' ? { runtimeSessionId } : {}),
  }
}

/** A sidecar's own error, under its own code. */
function refusal(answer: Answer): AppError {
  const said = json(answer.bytes)
  const code = typeof said?.['error'] === 'string' ? said['error'] : 'sidecar_refused'
  const message = said?.['message']
  const status = answer.status >= 400 && answer.status <= 599 ? answer.status : 502
  return new AppError(code, status, {
    message: typeof message === 'string' ? message : `The sidecar answered ${answer.status}.`,
    retryable: status === 503,
  })
}

function json(body: Buffer | undefined): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(body?.toString('utf8') ?? '')
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : undefined
  } catch {
    return undefined
  }
}
