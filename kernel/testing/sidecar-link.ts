import { AppError, createLineQueue, wholeLines } from '#kernel'
import { createEventEncoder } from '#contracts/run-event'
import type { Runtime, StateBundle } from '#contracts/runtime'
import type { SidecarHealth, SidecarLink } from '#contracts/sidecar'
import { runtimeSessionIdHeader } from '#contracts/wire/sidecar'

/** A sidecar at a base URL, in whatever language it is written. */
export function sidecarAt(baseUrl: string): SidecarLink {
  const base = baseUrl.replace(/\/+$/, '')
  const call = async (path: string, init: RequestInit = {}): Promise<Response> => {
    const response = await fetch(base + path, init)
    if (response.ok) return response
    const body = (await response.json().catch(() => ({}))) as { error?: string; message?: string }
    throw new AppError(body.error ?? 'http_error', response.status, body.message ? { message: body.message } : {})
  }
  const stateOf = (runtime: string, sessionId: string): string =>
    `/state/${encodeURIComponent(sessionId)}?runtime=${encodeURIComponent(runtime)}`
  return {
    health: async () => (await (await call('/health')).json()) as SidecarHealth,
    async *run(envelope, signal) {
      const response = await call('/run', {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(envelope),
        signal,
      })
      yield* wholeLines(response.body!)
    },
    async exportState(runtime, sessionId) {
      const response = await call(stateOf(runtime, sessionId)).catch((error: AppError) => error)
      if (response instanceof Error) {
        if (response.status === 404) return undefined
        throw response
      }
      const seeded = response.headers.get(runtimeSessionIdHeader)
      return {
        bytes: new Uint8Array(await response.arrayBuffer()),
        contentType: response.headers.get('content-type') ?? 'application/octet-stream',
        ...(seeded ? { runtimeSessionId: seeded } : {}),
      }
    },
    async hydrate(runtime, sessionId, bundle) {
      const headers = {
        'content-type': bundle.contentType,
        ...(bundle.runtimeSessionId ? { [runtimeSessionIdHeader]: bundle.runtimeSessionId } : {}),
      }
      await call(stateOf(runtime, sessionId), { method: 'POST', headers, body: Buffer.from(bundle.bytes) })
    },
    async forget(runtime, sessionId) {
      await call(stateOf(runtime, sessionId), { method: 'DELETE' })
    },
  }
}

/** An adapter without a host, so that the suite sees what it does itself and not what a host repairs. */
export function bareSidecar(runtime: Runtime): SidecarLink {
  return {
    health: async () => ({ ok: true, runtime: 'bare', runtimes: [], instance: 'bare', inflight: 0 }),
    async *run(envelope, signal) {
      const encoder = createEventEncoder(envelope.runId, envelope.sessionId, envelope.firstSeq)
      const queue = createLineQueue()
      const pump = async (): Promise<void> => {
        for await (const event of runtime.run(envelope, signal)) await queue.push(encoder.line(event))
      }
      pump().then(() => queue.close(), queue.close)
      yield* queue
    },
    exportState: async (_runtime, sessionId): Promise<StateBundle | undefined> => runtime.exportState?.(sessionId),
    async hydrate(_runtime, sessionId, bundle) {
      if (!runtime.hydrate) throw new AppError('state_not_supported', 400)
      await runtime.hydrate(sessionId, bundle)
    },
    forget: async (_runtime, sessionId) => runtime.forget?.(sessionId),
  }
}
