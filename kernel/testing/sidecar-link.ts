import { Agent, fetch } from 'undici'
import { AppError, createLineQueue, isAppError, linesOf, wholeLines } from '#kernel'
import { createEventEncoder, type EventEncoder, parseLine, readUnstamped } from '#contracts/run-event'
import type { Runtime, StateBundle } from '#contracts/runtime'
import type { SidecarHealth, SidecarLink } from '#contracts/sidecar'
import type { SignedParts } from '#contracts/signing'
import { runtimeSessionIdHeader } from '#contracts/wire/sidecar'

interface Init {
  readonly method?: string
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: string | Buffer
  readonly signal?: AbortSignal
}

/** The headers that authenticate the caller to a sidecar. */
export type SignRequest = (request: SignedParts) => Readonly<Record<string, string>>

/** A sidecar at a base URL, in any language. `sign` is for a sidecar that requires proof. */
export function sidecarAt(baseUrl: string, sign?: SignRequest): SidecarLink {
  const base = baseUrl.replace(/\/+$/, '')
  // One agent per exchange, destroyed with it, because an open connection would delay the server's stop.
  const exchange = async function* <T>(path: string, init: Init, read: (r: Response) => AsyncIterable<T>) {
    const agent = new Agent()
    try {
      const headers = { ...init.headers, ...signed(new URL(base + path), init) }
      const response = (await fetch(base + path, {
        ...init,
        headers,
        dispatcher: agent,
      } as never)) as unknown as Response
      if (!response.ok) {
        const body = (await response.json().catch(() => ({}))) as { error?: string; message?: string }
        throw new AppError(body.error ?? 'http_error', response.status, body.message ? { message: body.message } : {})
      }
      yield* read(response)
    } finally {
      await agent.destroy()
    }
  }
  const signed = ({ pathname, search }: URL, { method = 'GET', body = '' }: Init) =>
    sign?.({ tenant: '', method, target: pathname + search, body: Buffer.from(body) })
  const call = async <T>(path: string, init: Init, read: (r: Response) => Promise<T>): Promise<T> => {
    const answers = exchange(path, init, async function* (response) {
      yield await read(response)
    })
    return (await Array.fromAsync(answers))[0]!
  }
  const stateOf = (runtime: string, sessionId: string): string =>
    `/state/${encodeURIComponent(sessionId)}?runtime=${encodeURIComponent(runtime)}`
  return {
    health: () => call('/health', {}, async (response) => (await response.json()) as SidecarHealth),
    run: (envelope, signal) =>
      exchange(
        '/run',
        {
          method: 'POST',
          headers: { 'content-type': 'application/json' },
          body: JSON.stringify(envelope),
          signal,
        },
        (response) => wholeLines(response.body!),
      ),
    async exportState(runtime, sessionId) {
      try {
        return await call(stateOf(runtime, sessionId), {}, bundleOf)
      } catch (error) {
        if (isAppError(error) && error.status === 404) return undefined
        throw error
      }
    },
    async hydrate(runtime, sessionId, bundle) {
      const headers = {
        'content-type': bundle.contentType,
        ...(bundle.runtimeSessionId ? { [runtimeSessionIdHeader]: bundle.runtimeSessionId } : {}),
      }
      const init = { method: 'POST', headers, body: Buffer.from(bundle.bytes) }
      await call(stateOf(runtime, sessionId), init, (response) => response.text())
    },
    async forget(runtime, sessionId) {
      await call(stateOf(runtime, sessionId), { method: 'DELETE' }, (response) => response.text())
    },
  }
}

async function bundleOf(response: Response): Promise<StateBundle> {
  const seeded = response.headers.get(runtimeSessionIdHeader)
  return {
    bytes: new Uint8Array(await response.arrayBuffer()),
    contentType: response.headers.get('content-type') ?? 'application/octet-stream',
    ...(seeded ? { runtimeSessionId: seeded } : {}),
  }
}

/** An adapter without a host, so that the suite tests the adapter and not the host's repairs. */
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

/**
 * Does what a runner does with a sidecar's stream: stamps events without `seq`, and fills in fields that the specification lets a sidecar leave
 * out. A line that is no event is passed on, and the reader refuses it.
 */
export const stamping = (link: SidecarLink): SidecarLink => ({
  ...link,
  async *run(envelope, signal) {
    const { runId, sessionId, firstSeq } = envelope
    let encoder: EventEncoder | undefined
    let begun = false
    let answer = ''
    for await (const chunk of link.run(envelope, signal)) {
      const out: Buffer[] = []
      for (const line of linesOf(chunk)) {
        const said = parseLine(line)
        if (!begun && said && said['seq'] === undefined) encoder = createEventEncoder(runId, sessionId, firstSeq)
        begun = true
        const event = encoder && said && readUnstamped(said, () => answer)
        if (event?.type === 'assistant') answer += event.text
        out.push(encoder && event ? Buffer.from(encoder.line(event)) : Buffer.concat([line, newline]))
      }
      yield Buffer.concat(out)
    }
  },
})

const newline = Buffer.from('\n')
