import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { BootError, whenRead } from '#kernel'
import { isClientId } from '#contracts/ids'
import type { RunEnvelope } from '#contracts/run-envelope'
import { restoredFromLog, type Runtime, type StateBundle } from '#contracts/runtime'
import type { SidecarHealth, SidecarLink } from '#contracts/sidecar'
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
  /** Resolves when no run is under way and every conversation that only this process has was fetched since, or after `ms`. */
  drain(ms: number): Promise<void>
}

const drainTickMs = 25
/** How long a conductor may take to store what was fetched; until then this copy is the only one. */
const storedMs = 1_000
/** A sidecar that no runner has asked for this long waits for none to fetch what it has. Runners ask every few seconds. */
const nobodyMs = 15_000

export function createRunHost(mode: string, runtimes: ReadonlyMap<string, Runtime>, runs: Runs): RunHost {
  const served = mode === 'all' ? runtimes : new Map([...runtimes].filter(([name]) => name === mode))
  if (mode !== 'all' && served.size === 0) {
    const present = [...runtimes.keys()].toSorted().join(', ') || 'none'
    throw new BootError('sidecar', [
      `run-host: config.mode '${mode}' is not a runtime of this role; present: ${present}; set MODE to one of them or to all`,
    ])
  }
  const instance = randomUUID()
  /** Looked up each time: what a runtime misses may be installed meanwhile. */
  const names = (): string[] =>
    [...served].flatMap(([name, runtime]) => (runtime.missing === undefined ? [name] : [])).toSorted()
  const missing = (): Record<string, string> =>
    Object.fromEntries([...served].flatMap(([name, { missing: why }]) => (why === undefined ? [] : [[name, why]])))
  /** Sessions whose conversation changed since it was last exported, with a count of their runs; not those that their logs restore. */
  const changes = new Map<string, number>()
  let lastExport = -Infinity
  let lastAsked = -Infinity
  const find = (name: string | undefined): Runtime => {
    if (name === undefined && mode === 'all') throw runtimeRequired()
    const runtime = served.get(name ?? mode)
    if (!runtime) {
      throw unknownRuntime({
        message: `This sidecar has no runtime '${name}'; it has: ${names().join(', ') || 'none'}.`,
      })
    }
    return runtime
  }
  return {
    instance,
    get inflight() {
      return runs.inflight
    },
    health() {
      lastAsked = Date.now()
      const absent = missing()
      return {
        ok: true,
        runtime: mode,
        runtimes: names(),
        ...(Object.keys(absent).length > 0 ? { missing: absent } : {}),
        instance,
        inflight: runs.inflight,
        pid: process.pid,
        node: process.version,
        uptimeSeconds: Math.round(process.uptime()),
        memory: memory(),
      }
    },
    accept(envelope) {
      if (!isClientId(envelope.sessionId)) throw invalidSessionId()
      const { sessionId } = envelope
      const name = envelope.profile.runtime
      const runtime = find(name)
      const start = runs.accept(envelope, name, runtime)
      if (runtime.exportState && !restoredFromLog(name)) changes.set(sessionId, (changes.get(sessionId) ?? 0) + 1)
      return start
    },
    async exportState(name, sessionId) {
      const runtime = find(name)
      if (!isClientId(sessionId)) throw invalidSessionId()
      const before = changes.get(sessionId)
      const midRun = runs.busy(sessionId)
      const bundle = await runtime.exportState?.(sessionId)
      if (!midRun && changes.get(sessionId) === before) changes.delete(sessionId)
      lastExport = Date.now()
      return bundle
    },
    async hydrate(name, sessionId, bundle) {
      const runtime = find(name)
      if (!isClientId(sessionId)) throw invalidSessionId()
      if (bundle.bytes.length === 0) throw emptyBundle()
      if (!runtime.hydrate) throw noState()
      if (runs.busy(sessionId)) throw sessionBusy()
      await runtime.hydrate(sessionId, bundle)
      changes.delete(sessionId)
    },
    async forget(name, sessionId) {
      const runtime = find(name)
      if (!isClientId(sessionId)) throw invalidSessionId()
      changes.delete(sessionId)
      await runtime.forget?.(sessionId)
    },
    async drain(ms) {
      const until = Date.now() + ms
      const unfetched = (): boolean =>
        Date.now() - lastAsked < nobodyMs && (changes.size > 0 || Date.now() - lastExport < storedMs)
      while (Date.now() < until && (runs.inflight > 0 || unfetched())) await sleep(drainTickMs)
    },
  }
}

function memory(): Record<string, number> {
  const { rss, heapUsed, external } = process.memoryUsage()
  return { rssBytes: rss, heapUsedBytes: heapUsed, externalBytes: external }
}

/** The host for a runner in the same kernel: what the HTTP routes do, without the socket. */
export const localLink = (host: RunHost): SidecarLink => ({
  health: async () => host.health(),
  run: (envelope, signal) => whenRead(() => host.accept(envelope)(signal)[Symbol.asyncIterator]()),
  exportState: (runtime, sessionId) => host.exportState(runtime, sessionId),
  hydrate: (runtime, sessionId, bundle) => host.hydrate(runtime, sessionId, bundle),
  forget: (runtime, sessionId) => host.forget(runtime, sessionId),
})
