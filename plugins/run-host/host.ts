import { randomUUID } from 'node:crypto'
import { BootError } from '#kernel'
import { isClientId } from '#contracts/ids'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { Runtime, StateBundle } from '#contracts/runtime'
import type { SidecarHealth } from '#contracts/sidecar'
import { emptyBundle, invalidSessionId, noState, runtimeRequired, sessionBusy, unknownRuntime } from './errors.ts'
import type { Runs } from './runs.ts'

/** What the HTTP routes and the in-process link share: one set of rules for both. */
export interface RunHost {
  readonly instance: string
  readonly inflight: number
  health(): SidecarHealth
  /**
   * Accepts a run, or throws an AppError before anything is streamed. The returned function starts it and yields chunks
   * of whole NDJSON lines that end with exactly one `result` or `error`.
   */
  accept(envelope: RunEnvelope): (signal: AbortSignal) => AsyncIterable<Buffer>
  /** `runtime` may be left out where the host serves only one. */
  exportState(runtime: string | undefined, sessionId: string): Promise<StateBundle | undefined>
  hydrate(runtime: string | undefined, sessionId: string, bundle: StateBundle): Promise<void>
  forget(runtime: string | undefined, sessionId: string): Promise<void>
}

export function createRunHost(mode: string, runtimes: ReadonlyMap<string, Runtime>, runs: Runs): RunHost {
  const served = mode === 'all' ? runtimes : new Map([...runtimes].filter(([name]) => name === mode))
  if (mode !== 'all' && served.size === 0) {
    const present = [...runtimes.keys()].toSorted().join(', ') || 'none'
    throw new BootError('sidecar', [
      `run-host: config.mode '${mode}' is not a runtime of this role; present: ${present}; set MODE to one of them or to all`,
    ])
  }
  const instance = randomUUID()
  const names = [...served.keys()].toSorted()
  const find = (name: string | undefined): Runtime => {
    if (name === undefined && mode === 'all') throw runtimeRequired()
    const runtime = served.get(name ?? mode)
    if (!runtime) {
      throw unknownRuntime({ message: `This sidecar has no runtime '${name}'; it has: ${names.join(', ') || 'none'}.` })
    }
    return runtime
  }
  return {
    instance,
    get inflight() {
      return runs.inflight
    },
    health: () => ({
      ok: true,
      runtime: mode,
      runtimes: names,
      instance,
      inflight: runs.inflight,
      pid: process.pid,
      node: process.version,
      uptimeSeconds: Math.round(process.uptime()),
      memory: memory(),
    }),
    accept(envelope) {
      if (!isClientId(envelope.sessionId)) throw invalidSessionId()
      return runs.accept(envelope, envelope.profile.runtime, find(envelope.profile.runtime))
    },
    exportState: async (name, sessionId) => find(name).exportState?.(sessionId),
    async hydrate(name, sessionId, bundle) {
      const runtime = find(name)
      if (!isClientId(sessionId)) throw invalidSessionId()
      if (bundle.bytes.length === 0) throw emptyBundle()
      if (!runtime.hydrate) throw noState()
      if (runs.busy(sessionId)) throw sessionBusy()
      await runtime.hydrate(sessionId, bundle)
    },
    forget: async (name, sessionId) => find(name).forget?.(sessionId),
  }
}

function memory(): Record<string, number> {
  const { rss, heapUsed, external } = process.memoryUsage()
  return { rssBytes: rss, heapUsedBytes: heapUsed, externalBytes: external }
}
