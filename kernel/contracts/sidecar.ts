import { capability, slot } from '../plugin.ts'
import type { RunEnvelope } from './run-envelope.ts'
import type { StateBundle } from './runtime.ts'

export interface SidecarHealth {
  readonly ok: boolean
  /** A runtime's name, or `all` for a poly-sidecar. */
  readonly runtime: string
  readonly runtimes: readonly string[]
  /** Runtimes that are set up but cannot execute runs, and what each misses, as a sentence. */
  readonly missing?: Readonly<Record<string, string>>
  readonly instance: string
  readonly inflight: number
  /** It reads linked attachments from its runner; older sidecars, and those in other languages, need them whole. */
  readonly readsLinks?: boolean
  readonly [more: string]: unknown
}

/** Runner to one sidecar: over HTTP, or in process when both live in one kernel. Same contract suite for both. */
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

/** Which sidecar serves a runtime: URLs from configuration, else the local one. */
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
  /** What it misses to be offered, as a sentence. */
  readonly missing?: string
}
export const Sidecars = capability<Sidecars>('runner.sidecars')
