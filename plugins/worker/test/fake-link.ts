import { once } from 'node:events'
import { AppError } from '#kernel'
import type { RunEnvelope } from '#contracts/run-envelope'
import { createEventEncoder, type RuntimeEvent } from '#contracts/run-event'
import type { SidecarLink } from '#contracts/sidecar'

export interface FakeLink extends SidecarLink {
  /** The prompts that each session has received. */
  readonly sessions: Map<string, string[]>
  /** Run ids, in the order in which they began. */
  readonly begun: string[]
  /** Why the run under way was stopped. */
  readonly stopped: string[]
  /** The number of lines that were pulled out of floods. */
  readonly flooded: number
  /** Ends the runs that hang. */
  release(): void
}

export const floodLine = 'x'.repeat(64 * 1024)

/**
 * A link whose runs act by their prompt: `hang` waits until the run is stopped, `flood N` yields N lines of 64 KiB, `refuse` is refused, and any
 * other prompt is remembered and answered with all prompts of the session.
 */
export function createFakeLink(runtimes: readonly string[] = ['general']): FakeLink {
  const sessions = new Map<string, string[]>()
  const begun: string[] = []
  const stopped: string[] = []
  let flooded = 0
  const released = new AbortController()
  async function* events({ prompt, sessionId }: RunEnvelope, signal: AbortSignal): AsyncGenerator<RuntimeEvent> {
    if (prompt === 'hang') {
      yield { type: 'progress', stage: 'hanging' }
      const either = AbortSignal.any([signal, released.signal])
      if (!either.aborted) await once(either, 'abort')
      const code = signal.reason === 'shutdown' ? 'interrupted' : 'cancelled'
      stopped.push(code)
      yield { type: 'error', code, message: 'The run was stopped.' }
      return
    }
    const lines = Number(/^flood (\d+)$/.exec(prompt)?.[1] ?? 0)
    for (let i = 0; i < lines && !signal.aborted; i++) {
      flooded++
      yield { type: 'assistant', text: floodLine, delta: true }
    }
    if (signal.aborted) stopped.push('cancelled')
    const told = [...(sessions.get(sessionId) ?? []), ...(lines > 0 ? [] : [prompt])]
    if (told.length > 0) sessions.set(sessionId, told)
    yield { type: 'result', text: told.join(', '), finishReason: 'stop' }
  }
  return {
    sessions,
    begun,
    stopped,
    get flooded() {
      return flooded
    },
    release: () => released.abort(),
    health: async () => ({ ok: true, runtime: 'all', runtimes, instance: 'fake', inflight: 0 }),
    async *run(envelope, signal) {
      if (envelope.prompt === 'refuse' || (envelope.resume && !sessions.has(envelope.sessionId))) {
        throw new AppError('session_state_missing', 409, { message: 'It is not here.' })
      }
      begun.push(envelope.runId)
      const encoder = createEventEncoder(envelope.runId, envelope.sessionId, envelope.firstSeq)
      for await (const event of events(envelope, signal)) yield Buffer.from(encoder.line(event))
    },
    async exportState(_runtime, sessionId) {
      const told = sessions.get(sessionId)
      return (
        told && {
          bytes: Buffer.from(JSON.stringify(told)),
          contentType: 'application/json',
          runtimeSessionId: 'vendor-1',
        }
      )
    },
    async hydrate(runtime, sessionId, { bytes }) {
      if (!runtimes.includes(runtime)) throw new AppError('unknown_runtime', 400)
      const text = Buffer.from(bytes).toString()
      if (text === 'corrupt') throw new AppError('invalid_state', 400)
      sessions.set(sessionId, JSON.parse(text) as string[])
    },
    async forget() {},
  }
}
