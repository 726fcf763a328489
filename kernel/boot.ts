import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { Registry } from 'prom-client'
import { Listeners } from './http/listeners.ts'
import type { Compilers } from './kit/compilers.ts'
import { createLogger } from './kit/logger.ts'
import { tablesOf } from './contracts/error-docs.ts'
import { BootError, decoded, guardedIn, plan, risksOf } from './plan.ts'
import type { Entry, PluginContext, Role } from './plugin.ts'

export interface Running {
  readonly role: string
  /** The listeners that are on; tests call `running.listeners.gateway.inject(...)`. */
  readonly listeners: Readonly<Record<string, FastifyInstance>>
  /** Base URLs of the listeners. Available once they listen. */
  readonly urls: Readonly<Record<string, string>>
  stop(): Promise<void>
}

export interface BootOptions {
  /** False: set up and mount everything, open no port (tests use `inject`). */
  readonly listen?: boolean
  readonly log?: FastifyBaseLogger
  /** Shared by the kernels of a process; absent: its own. */
  readonly compilers?: Compilers
  /** Called when a step begins: each entry's name before its setup, then `routes`, `preload`, `start`, `listen`. For progress and timing. */
  readonly onStep?: (step: string) => void
  /** Called when a plugin finds after the boot that this role must not continue; stop it then. By default the process ends. */
  readonly onFailure?: (error: BootError) => void
  /** Called when a plugin reports that this role is done; stop it then. By default the role stops by itself. */
  readonly onEnd?: () => void
}

/** Sets up in order, then mounts routes, then starts loops, and listens last. After a failure it stops everything that has started. */
export async function boot(role: Role, options: BootOptions = {}): Promise<Running> {
  const kernel = new Kernel(role, plan(role), options)
  try {
    await kernel.start()
  } catch (error) {
    await kernel.stop().catch(() => {})
    throw error
  }
  const { apps, urls } = kernel.listeners
  return { role: role.name, listeners: apps as never, urls, stop: () => kernel.stop() }
}

/** A function that a plugin registered to run later, in its turn. */
type Task = readonly [plugin: string, run: () => unknown]

class Kernel {
  readonly listeners: Listeners
  readonly #role: Role
  readonly #order: readonly Entry[]
  readonly #options: BootOptions
  readonly #log: FastifyBaseLogger
  readonly #metrics = new Registry()
  /** The provided values, by the id of the capability. A slot has a map of its entries. */
  readonly #provided = new Map<string, unknown>()
  readonly #mounts: Task[] = []
  readonly #loads: Task[] = []
  readonly #starts: Task[] = []
  /** The stop functions of a role without listeners. */
  readonly #stops: (() => Promise<void>)[] = []
  readonly #stopping = new AbortController()
  readonly #failures: unknown[] = []
  readonly #risks: readonly string[]
  #stopped: Promise<void> | undefined

  constructor(role: Role, order: readonly Entry[], options: BootOptions) {
    this.#role = role
    this.#order = order
    this.#options = options
    this.#log = options.log ?? createLogger(role.name, role.log?.level ?? 'info')
    this.#risks = risksOf(role)
    for (const risk of this.#risks) this.#log.warn({ risk }, 'the configuration of the role has a risk')
    this.listeners = new Listeners(role.listeners, tablesOf(order.map(({ plugin }) => plugin)), options.compilers)
  }

  async start(): Promise<void> {
    const { listen = true, onStep = () => {} } = this.#options
    const guarded = guardedIn(this.#order)
    await this.#do('listeners', () => this.listeners.create(this.#log, this.#role.log?.requests ?? false, guarded))
    for (const entry of this.#order) {
      onStep(entry.name)
      await this.#do(`${entry.name}: setup`, () => this.#setUp(entry))
    }
    onStep('routes')
    for (const [plugin, mount] of this.#mounts) await this.#do(`${plugin}: routes`, mount)
    await this.#do('routes', () => this.listeners.ready())
    onStep('preload')
    for (const [plugin, load] of this.#role.preload ? this.#loads : []) await this.#do(`${plugin}: preload`, load)
    onStep('start')
    for (const [plugin, start] of this.#starts) await this.#do(`${plugin}: start`, start)
    onStep('listen')
    const names = listen ? this.listeners.names : []
    for (const name of names) await this.#do(`listen ${name}`, () => this.listeners.listen(name))
  }

  /** Runs a step. If it fails, the error names the step. */
  async #do(what: string, run: () => unknown): Promise<void> {
    try {
      await run()
    } catch (cause) {
      if (cause instanceof BootError) throw cause
      const why = cause instanceof Error ? cause.message : String(cause)
      throw new BootError(this.#role.name, [`${what}: ${why}`], cause)
    }
  }

  async #setUp(entry: Entry): Promise<void> {
    const { requires, provides, setup } = entry.plugin
    const deps = Object.entries(requires).map(([key, { id, mode }]) => {
      return [key, this.#provided.get(id) ?? (mode === 'many' ? new Map() : undefined)]
    })
    const made: Readonly<Record<string, unknown>> = await setup(this.#contextOf(entry, Object.fromEntries(deps)))
    for (const [key, { id, mode }] of Object.entries(provides)) {
      const value = made[key]
      if (value === undefined) throw new Error(`setup returned nothing for '${key}' (${id})`)
      this.#provided.set(id, mode === 'many' ? this.#withEntries(id, value as object) : value)
    }
  }

  #withEntries(id: string, added: object): ReadonlyMap<string, unknown> {
    const entries = new Map(this.#provided.get(id) as ReadonlyMap<string, unknown> | undefined)
    for (const [name, item] of Object.entries(added)) {
      if (entries.has(name)) throw new Error(`'${id}' already has an entry '${name}'`)
      entries.set(name, item)
    }
    return entries
  }

  #contextOf(entry: Entry, deps: object): PluginContext<never, never> {
    const { name } = entry
    const { listeners } = this
    const { onFailure = throwLater, onEnd = () => void this.stop().catch(notCleanly) } = this.#options
    const notCleanly = (err: unknown): void => this.#log.error({ err }, 'did not stop cleanly')
    return {
      config: decoded(entry),
      deps: deps as never,
      log: this.#log.child({ plugin: name }),
      metrics: this.#metrics,
      stopping: this.#stopping.signal,
      fail: (error) => onFailure(new BootError(this.#role.name, [`${name}: ${error.message}`], error)),
      end: onEnd,
      plugins: this.#order.map((one) => one.plugin),
      risks: this.#risks,
      listeners: listeners.names,
      innermost: listeners.innermost,
      urlOf: (listener) => listeners.urlOf(listener),
      routes: (listener, mount) => {
        const app = listeners.find(listener)
        // Set a name, because Fastify would otherwise search all loaded modules for one.
        const named = Object.assign(mount.bind(undefined), { [Symbol.for('fastify.display-name')]: name })
        if (app) this.#mounts.push([name, () => app.register(named as never)])
      },
      beforeClose: (listener, fn) => listeners.beforeClose(listener, fn),
      loads: (load) => void this.#loads.push([name, load]),
      onStart: (fn) => void this.#starts.push([name, fn]),
      onStop: this.#stopsOfPlugin(),
    }
  }

  /** A plugin stops when the innermost listener has closed, in its turn among the Fastify plugins that are registered there. */
  #stopsOfPlugin(): PluginContext['onStop'] {
    const stops: (() => Promise<void>)[] = []
    const stop = async (): Promise<void> => {
      for (const fn of stops.toReversed()) await fn().catch(this.#failed)
    }
    // Fastify's order: the function that was registered last runs first.
    if (this.listeners.innermost) this.listeners.innermost.addHook('onClose', stop)
    else this.#stops.unshift(stop)
    return (fn) => void stops.push(fn)
  }

  readonly stop = (): Promise<void> => (this.#stopped ??= this.#stop())
  async #stop(): Promise<void> {
    this.#stopping.abort()
    await this.listeners.close(this.#failed)
    for (const stop of this.#stops) await stop()
    if (this.#failures.length === 0) return
    throw new AggregateError(this.#failures, `role '${this.#role.name}' did not stop cleanly`)
  }
  readonly #failed = (error: unknown): void => void this.#failures.push(error)
}

/** Throws outside every promise, so that nothing can catch the error by accident. */
function throwLater(error: Error): void {
  setImmediate(() => {
    throw error
  })
}
