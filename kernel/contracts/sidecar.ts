import { capability, slot } from '../plugin.ts'
import type { RunEnvelope } from './run-envelope.ts'
import type { StateBundle } from './runtime.ts'

export interface SidecarHealth {
  readonly ok: boolean
  /** A runtime's name, or `all` for a sidecar that serves several runtimes. */
  readonly runtime: string
  readonly runtimes: readonly string[]
  /** Runtimes that are configured but cannot execute runs, each with a sentence that says what is missing. */
  readonly missing?: Readonly<Record<string, string>>
  readonly instance: string
  readonly inflight: number
  /** The sidecar reads linked attachments from its runner. Older sidecars, and those in other languages, need attachments inline. */
  readonly readsLinks?: boolean
  readonly [more: string]: unknown
}

/** Runner to one sidecar: over HTTP, or in process when both are in one kernel. Both pass the same contract suite. */
export interface SidecarLink {
  health(signal?: AbortSignal): Promise<SidecarHealth>
  /**
   * Executes a run. Yields chunks of whole stamped NDJSON lines; the last line is a `result` or `error`. Aborting
   * `signal` ends the sidecar's turn and its model connection. `accepted` is called once the sidecar has taken the run, perhaps
   * long before its first line. Rejects with a retryable AppError when it cannot be reached, and with `sidecar_draining` when
   * it is about to stop and has nothing of the session that is not stored.
   */
  run(envelope: RunEnvelope, signal: AbortSignal, accepted?: () => void): AsyncIterable<Buffer>
  exportState(runtime: string, sessionId: string): Promise<StateBundle | undefined>
  hydrate(runtime: string, sessionId: string, bundle: StateBundle): Promise<void>
  forget(runtime: string, sessionId: string): Promise<void>
}

/** A sidecar in the same kernel as the runner; at most one entry, named `local`. */
export const LocalSidecars = slot<SidecarLink>('runner.local-sidecars')

/** Finds the sidecar of a runtime: configured URLs first, otherwise the local sidecar. */
export interface Sidecars {
  /** Throws AppError 503 `runtime_unavailable` when no sidecar is configured for the runtime. */
  forRuntime(runtime: string): SidecarLink
  /** Runtimes that this runner can execute. */
  runtimes(): Promise<readonly string[]>
  slots(): readonly SidecarSlot[]
}
export interface SidecarSlot {
  readonly runtime: string
  readonly mode: 'sidecar' | 'stub' | 'unknown'
  readonly url: string
  /** A sentence that says what the runtime lacks to be offered. */
  readonly missing?: string
}
export const Sidecars = capability<Sidecars>('runner.sidecars')
