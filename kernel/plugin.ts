import type { FastifyBaseLogger } from 'fastify'
import { type StaticDecode, type TObject, type TSchema, Type } from '@sinclair/typebox'
import type { Registry } from 'prom-client'
import type { ErrorTable } from './contracts/errors.ts'
import type { App } from './http/app.ts'
import type { ListenerConfig } from './http/listener-config.ts'
import type { Origin } from './problems.ts'

type Mode = 'one' | 'maybe' | 'many'

/** A typed name for something plugins share. It carries no code, so depending on it couples no plugins. */
export interface Capability<T, M extends Mode = 'one'> {
  readonly id: string
  readonly mode: M
  readonly _type?: T
}

/** Names a thing that exactly one plugin of a role provides. */
export const capability = <T>(id: string): Capability<T> => ({ id, mode: 'one' })

/** Names a slot: many plugins may each add named entries, e.g. every runtime adapter adds itself. */
export const slot = <T>(id: string): Capability<T, 'many'> => ({ id, mode: 'many' })

/** Consumes a capability that a role may lack, e.g. billing in development. */
export const maybe = <T>(c: Capability<T>): Capability<T, 'maybe'> => ({ id: c.id, mode: 'maybe' })

export type Refs = Readonly<Record<string, Capability<unknown, Mode>>>

export type Consumed<R extends Refs> = {
  readonly [K in keyof R]: R[K] extends Capability<infer T, infer M>
    ? M extends 'many'
      ? ReadonlyMap<string, T>
      : M extends 'maybe'
        ? T | undefined
        : T
    : never
}

export type Provided<P extends Refs> = {
  [K in keyof P]: P[K] extends Capability<infer T, infer M> ? (M extends 'many' ? Record<string, T> : T) : never
}

/** Version of the plugin contract. The loader refuses plugins of other versions. */
export const pluginApi = 1

export interface PluginContext<C = unknown, R extends Refs = Refs> {
  /** The plugin's own settings: validated, defaulted and coerced by its schema. */
  readonly config: C
  readonly deps: Consumed<R>
  readonly log: FastifyBaseLogger
  /** This kernel's metrics registry: `new Counter({ ..., registers: [ctx.metrics] })`. */
  readonly metrics: Registry
  /** Aborts when the kernel begins to stop, before any listener closes. Pass it into loops, and stop reporting readiness. */
  readonly stopping: AbortSignal
  /** Ends the role, and its process, after a problem that was found only after the boot. During setup, throw instead. */
  fail(error: Error): void
  /** Ends the role, and its process, in good order, because its work is done. */
  end(): void
  /** The plugins of this role, including this one, in the order of their setup. */
  readonly plugins: readonly Pick<Plugin, 'name' | 'migrations'>[]
  /** The risks of the role, see `PluginSpec`. */
  readonly risks: readonly string[]
  /** Names of the listeners that this role declares and has switched on. */
  readonly listeners: readonly string[]
  /**
   * The listener that closes last, for a Fastify plugin that holds a connection: registered there in setup, it ends after all
   * that was set up later has stopped. Undefined in a role without listeners.
   */
  readonly innermost: App | undefined
  /** Base URL of a listener, e.g. `http://127.0.0.1:8080`. Throws before the kernel listens: call it lazily. */
  urlOf(listener: string): string
  /** Mounts routes in a private scope of a named listener. An undeclared name fails the boot; a listener that is switched off mounts nothing. */
  routes(listener: string, mount: (app: App) => Promise<void>): void
  /** Registers code that loads on first use; with `preload` in the role file it is loaded before `onStart`. May be called more than once. */
  loads(load: () => Promise<unknown>): void
  /** Runs after every plugin is set up and mounted, before the listeners accept connections. */
  onStart(fn: () => Promise<void>): void
  /**
   * Runs on stop before a named listener closes, while it still answers, so that others can finish or fetch what they need.
   * The function bounds its own time. It never runs for a listener that is switched off.
   */
  beforeClose(listener: string, fn: () => Promise<void>): void
  /** Runs on stop, in reverse order of registration, after the listeners closed. Register it right after acquiring. */
  onStop(fn: () => Promise<void>): void
}

export interface PluginSpec<C extends TSchema, R extends Refs, P extends Refs> {
  readonly api: typeof pluginApi
  readonly name: string
  readonly config: C
  readonly requires: R
  readonly provides: P
  /** The folder of migrations for the plugin's tables, `new URL('./migrations/', import.meta.url)`. They are applied after ours. */
  readonly migrations?: URL
  /**
   * Listeners whose callers this plugin authenticates with `proofsOf` of the kit, according to its settings. The kernel answers nobody there until
   * the plugin does so.
   */
  guards?(config: StaticDecode<C>): readonly string[]
  /** Risks that the operator of this role should know, one sentence each, for the log, `/readyz` and `check-config --strict`. */
  risks?(config: StaticDecode<C>, role: Pick<Role, 'listeners' | 'plugins'>): readonly string[]
  /** The errors that its callers may get: its own table, and those of contracts that it answers with. */
  readonly errors?: ErrorTable | readonly ErrorTable[]
  setup(ctx: PluginContext<StaticDecode<C>, R>): Promise<Provided<P>>
}

export type Plugin = PluginSpec<TObject, Refs, Refs>

/** One use of a plugin. `name` is the key in the role file, so one plugin can be used twice (two signing families). */
export interface Entry {
  readonly name: string
  readonly plugin: Plugin
  readonly config?: unknown
  /** The origin of a setting: `path` is a JSON pointer into `config`, '' for the entry. Absent when built in code. */
  readonly where?: (path: string) => Origin
}

/** The result of loading a config file. A role is data: which plugins, with which config, on which ports. */
export interface Role {
  readonly name: string
  readonly listeners: Readonly<Record<string, ListenerConfig>>
  readonly plugins: readonly Entry[]
  /** True: code that plugins would load on first use is loaded before the role is ready. */
  readonly preload?: boolean
  readonly log?: { readonly level?: string; readonly requests?: boolean }
  /** Milliseconds that a process gives this role to stop before it exits anyway. */
  readonly shutdownGrace?: number
}

const noConfig = Type.Object({}, { additionalProperties: false })
type NoConfig = typeof noConfig

/**
 * Declares a plugin: what it needs, what it gives, and how it is wired. A forgotten or misshapen capability is a
 * compile error, because `provides` and the object that `setup` returns share their keys.
 */
export function definePlugin<
  C extends TObject = NoConfig,
  R extends Refs = Record<never, never>,
  P extends Refs = Record<never, never>,
>(spec: Pick<PluginSpec<C, R, P>, 'name' | 'setup'> & Partial<PluginSpec<C, R, P>>): Plugin {
  return { api: pluginApi, config: noConfig, requires: {}, provides: {}, ...spec } as unknown as Plugin
}
