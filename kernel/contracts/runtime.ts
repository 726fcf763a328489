import type { Static, TObject } from '@sinclair/typebox'
import type { FastifyBaseLogger } from 'fastify'
import type { ErrorTable } from './errors.ts'
import { type Capability, definePlugin, maybe, type Plugin, slot } from '../plugin.ts'
import { ModelEgress, type ModelProvider, Models } from './model.ts'
import type { RunEnvelope } from './run-envelope.ts'
import type { EventBatch, RuntimeEvent } from './run-event.ts'

/** An opaque copy of a session's conversation, sufficient to continue it on another host. */
export interface StateBundle {
  readonly bytes: Uint8Array
  /**
   * `application/json` for `general`, `application/gzip` for the vendor runtimes. `general` also takes `turnsContentType`, which no
   * runtime makes: the stored runs of the conversation.
   */
  readonly contentType: string
  readonly runtimeSessionId?: string
}

/**
 * Executes runs against a model. The host (run-host) gives the guarantees: it ends every stream with exactly one `result` or `error`, turns
 * exceptions into `error`, stamps and orders events, enforces the deadline through `signal`, and counts. An adapter only talks to its vendor.
 */
export interface Runtime {
  readonly contract: 'runtime/1'
  /**
   * True when the runtime continues after an envelope's `replay` instead of repeating the turn. It forgets what an earlier attempt of the run left
   * in the session, repeats neither the replayed text nor finished calls, executes the calls without a result, and names each call to the session's
   * tools by its id (`callIdMeta`).
   */
  readonly replays?: boolean
  /** A sentence that says why no run can be executed here, e.g. because a package has to be installed. The host then does not offer the runtime. */
  readonly missing?: string | undefined
  /** Yields events until the run is over. Must stop, and close its model connection, soon after `signal` aborts. */
  run(envelope: RunEnvelope, signal: AbortSignal): AsyncIterable<RuntimeEvent>
  /** Yields the events of `run` in batches of those that arrived together. A host prefers it to `run`. */
  batches?(envelope: RunEnvelope, signal: AbortSignal): AsyncIterable<EventBatch>
  /** The session's state, or undefined when there is none. */
  exportState?(sessionId: string): Promise<StateBundle | undefined>
  /** Restores a session from a bundle. Throws AppError 400 on a corrupt bundle, and then changes nothing. */
  hydrate?(sessionId: string, bundle: StateBundle): Promise<void>
  /** True when this process has the session's conversation. Without this method the runtime is never asked whether it lost one. */
  has?(sessionId: string): boolean
  /** Forgets a session that was shut down. */
  forget?(sessionId: string): Promise<void>
}

export const Runtimes = slot<Runtime>('sidecar.runtimes')

export interface RuntimeContext<C> {
  readonly config: C
  /** The role's model providers, by the name before the slash of a profile's `model`. */
  readonly models: ReadonlyMap<string, ModelProvider>
  /** Set in a sandbox worker: the way to the model servers through the runner, which has the keys. */
  readonly egress: ModelEgress | undefined
  readonly log: FastifyBaseLogger
  /** See `PluginContext`. */
  loads(load: () => Promise<unknown>): void
  onStop(fn: () => Promise<void>): void
}

/** A runtime adapter as a plugin. `name` is the value of a profile's `runtime`. */
export function defineRuntime<C extends TObject>(spec: {
  readonly name: string
  readonly config?: C
  /** Includes the codes of its `error` events. */
  readonly errors?: ErrorTable | readonly ErrorTable[]
  create(ctx: RuntimeContext<Static<C>>): Promise<Runtime>
}): Plugin {
  return definePlugin<
    TObject,
    { models: typeof Models; egress: Capability<ModelEgress, 'maybe'> },
    { runtimes: typeof Runtimes }
  >({
    name: `runtime-${spec.name}`,
    ...(spec.config ? { config: spec.config } : {}),
    ...(spec.errors ? { errors: spec.errors } : {}),
    requires: { models: Models, egress: maybe(ModelEgress) },
    provides: { runtimes: Runtimes },
    async setup(ctx) {
      const runtime = await spec.create({
        config: ctx.config as Static<C>,
        models: ctx.deps.models,
        egress: ctx.deps.egress,
        log: ctx.log,
        loads: (load) => ctx.loads(load),
        onStop: (fn) => ctx.onStop(fn),
      })
      return { runtimes: { [spec.name]: runtime } }
    },
  })
}
