import { Pool } from 'undici'
import { AppError, wholeLines } from '#kernel'
import type { StateBundle } from '#contracts/runtime'
import type { SidecarHealth, SidecarLink } from '#contracts/sidecar'
import { runtimeSessionIdHeader } from '#contracts/wire/sidecar'
import { sidecarUnreachable, stateTooLarge } from './errors.ts'
import { exchange, readBody, type Reply } from './exchange.ts'

/** Largest state bundle that a runner takes. Specification 7: the runner's state-bundle size cap. */
const maxStateBytes = 64 * 1024 * 1024
/** A refusal or a health body longer than this is not one. */
const maxSmallBytes = 64 * 1024
const healthMs = 2_000
const connectMs = 5_000
/** A sidecar answers a run's headers at once; state operations may pack an archive first. */
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
  return {
    async health(signal) {
      const limit = AbortSignal.timeout(healthMs)
      const within = signal ? AbortSignal.any([signal, limit]) : limit
      const reply = await exchange(pool, { path: `${prefix}/health`, method: 'GET' }, within).catch(
        (cause: unknown) => {
          throw limit.aborted ? sidecarUnreachable({ cause, retryable: true }) : cause
        },
      )
      if (reply.status !== 200) throw await refusal(reply)
      return healthOf(await readBody(reply.body, maxSmallBytes))
    },
    async *run(envelope, signal) {
      const reply = await exchange(
        pool,
        {
          path: `${prefix}/run`,
          method: 'POST',
          headers: { 'content-type': 'application/json', accept: 'application/x-ndjson' },
          body: JSON.stringify(envelope),
        },
        signal,
      )
      if (reply.status !== 200) throw await refusal(reply)
      yield* wholeLines(reply.body)
    },
    async exportState(runtime, sessionId) {
      const reply = await exchange(pool, { path: statePath(runtime, sessionId), method: 'GET' })
      if (reply.status === 404) {
        await readBody(reply.body, maxSmallBytes)
        return undefined
      }
      if (reply.status !== 200) throw await refusal(reply)
      const bytes = await readBody(reply.body, maxStateBytes)
      if (!bytes) throw stateTooLarge()
      return bundleOf(bytes, reply)
    },
    async hydrate(runtime, sessionId, bundle) {
      const headers = {
        'content-type': bundle.contentType,
        ...(bundle.runtimeSessionId === undefined ? {} : { [runtimeSessionIdHeader]: bundle.runtimeSessionId }),
      }
      const reply = await exchange(pool, {
        path: statePath(runtime, sessionId),
        method: 'POST',
        headers,
        body: bundle.bytes,
      })
      if (reply.status !== 204) throw await refusal(reply)
      await readBody(reply.body, maxSmallBytes)
    },
    async forget(runtime, sessionId) {
      const reply = await exchange(pool, { path: statePath(runtime, sessionId), method: 'DELETE' })
      // The specification asks a sidecar for GET and POST only: one that cannot forget has nothing to answer for.
      if (reply.status >= 500) throw await refusal(reply)
      await readBody(reply.body, maxSmallBytes)
    },
    close: () => pool.destroy(),
  }
}

function healthOf(body: Buffer | undefined): SidecarHealth {
  const said = json(body)
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
    instance: typeof said['instance'] === 'string' ? said['instance'] : '',
    inflight: typeof said['inflight'] === 'number' ? said['inflight'] : 0,
  }
}

function bundleOf(bytes: Buffer, { headers }: Reply): StateBundle {
  const contentType = headers['content-type']
  const runtimeSessionId = headers[runtimeSessionIdHeader]
  return {
    bytes,
    contentType: typeof contentType === 'string' ? contentType : 'application/octet-stream',
    ...(typeof runtimeSessionId === 'string' && runtimeSessionId !== '' ? { runtimeSessionId } : {}),
  }
}

/** A sidecar's own error, under its own code. */
async function refusal(reply: Reply): Promise<AppError> {
  const said = json(await readBody(reply.body, maxSmallBytes))
  const code = typeof said?.['error'] === 'string' ? said['error'] : 'sidecar_refused'
  const message = said?.['message']
  const status = reply.status >= 400 && reply.status <= 599 ? reply.status : 502
  return new AppError(code, status, {
    message: typeof message === 'string' ? message : `The sidecar answered ${reply.status}.`,
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
