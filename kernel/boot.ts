import { Value } from '@sinclair/typebox/value'
import type { FastifyInstance } from 'fastify'
import { Registry } from 'prom-client'
import type { App } from './http/app.ts'
import type { Listener } from './http/listener.ts'
import { createLogger } from './logger.ts'
import { BootError, type ListenerConfig, plan, type Role, settings, shownAt } from './plan.ts'

export interface Running {
  readonly role: string
  /** The listeners that are on; tests call `running.listeners.gateway.inject(...)`. */
  readonly listeners: Readonly<Record<string, FastifyInstance>>
  /** Base URLs of the listeners, after listening. */
  readonly urls: Readonly<Record<string, string>>
  stop(): Promise<void>
}

export interface BootOptions {
  /** False: set up and mount everything, open no port (tests use `inject`). */
  readonly listen?: boolean
  readonly log?: ReturnType<typeof createLogger>
  /** Told what begins: the name of each entry before its setup, then `routes`, `start` and `listen`. For progress and timing. */
  readonly onStep?: (step: string) => void
  /** Told when a plugin finds out, after the boot, that this role must not go on; stop it then. Unless given, the process ends. */
  readonly onFailure?: (error: BootError) => void
  /** Told when a plugin says that this role is done; stop it then. Unless given, the role stops by itself. */
  readonly onEnd?: () => void
}

interface Mount {
  readonly plugin: string
  readonly app: App
  readonly mount: (app: App) => Promise<void>
}

/** Setup in order, then mount routes, then start loops, and listen last; on failure everything already started is stopped. */
export async function boot(role: Role, options: BootOptions = {}): Promise<Running> {
  const order = plan(role)
  const log = options.log ?? createLogger(role.name, role.log?.level ?? 'info')
  const metrics = new Registry()
  const listeners = new Map<string, Listener>()
  const urls: Record<string, string> = {}
  const built = new Map<string, unknown>()
  const slots = new Map<string, Map<string, unknown>>()
  const mounts: Mount[] = []
  const starts: { plugin: string; fn: () => Promise<void> }[] = []
  const closings: { listener: string; fn: () => Promise<void> }[] = []
  const stops: (() => Promise<void>)[] = []
  let stopping: Promise<void> | undefined
  const stop = (): Promise<void> => (stopping ??= unwind())
  const ended = new AbortController()
  const unwind = async (): Promise<void> => {
    ended.abort()
    // All at once, before anything is let end: nobody goes on to ask a process that may refuse what is new for long.
    for (const { leave } of listeners.values()) leave()
    const failures: unknown[] = []
    // In the order the role declares them, outermost first: a request under way in one may still need the next to finish.
    const failed = (error: unknown): void => void failures.push(error)
    for (const [name, { app }] of listeners) {
      await Promise.all(closings.filter(({ listener }) => listener === name).map(({ fn }) => fn().catch(failed)))
      await app.close().then(undefined, failed)
    }
    for (const fn of stops.toReversed()) await fn().catch(failed)
    if (failures.length > 0) throw new AggregateError(failures, `role '${role.name}' did not stop cleanly`)
  }
  const fail =
    options.onFailure ??
    ((error: BootError): void => {
      // Out of every promise, where nobody can catch it by accident.
      setImmediate(() => {
        throw error
      })
    })
  let at = 'listeners'
  try {
    for (const [name, { port }] of Object.entries(role.listeners)) {
      if (port === undefined) continue
      // Half of what the kernel loads; a role that opens no port is there sooner without it.
      const { createListener } = await import('./http/listener.ts')
      listeners.set(name, await createListener(name, log.child({ listener: name }), role.log?.requests ?? false))
    }
    for (const entry of order) {
      const { name, plugin } = entry
      at = `${name}: setup`
      options.onStep?.(name)
      const deps = Object.fromEntries(
        Object.entries(plugin.requires).map(([key, c]) => [
          key,
          c.mode === 'many' ? (slots.get(c.id) ?? new Map()) : built.get(c.id),
        ]),
      )
      const made = await plugin.setup({
        config: Value.Decode(plugin.config, settings(entry)) as never,
        deps: deps as never,
        log: log.child({ plugin: name }),
        metrics,
        stopping: ended.signal,
        fail: (error) => fail(new BootError(role.name, [`${name}: ${error.message}`], error)),
        end: options.onEnd ?? (() => void stop().catch((err: unknown) => log.error({ err }, 'did not stop cleanly'))),
        plugins: order.map((one) => one.plugin),
        listeners: [...listeners.keys()],
        urlOf(listener) {
          const url = urls[listener]
          if (url === undefined) throw new Error(`listener '${listener}' is not listening (yet)`)
          return url
        },
        routes(listener, mount) {
          if (!(listener in role.listeners))
            throw new Error(`this role declares no listener '${listener}'; add it under listeners`)
          const target = listeners.get(listener)
          if (target) mounts.push({ plugin: name, app: target.app, mount })
        },
        beforeClose: (listener, fn) => void closings.push({ listener, fn }),
        onStart: (fn) => void starts.push({ plugin: name, fn }),
        onStop: (fn) => void stops.push(fn),
      })
      for (const [key, c] of Object.entries(plugin.provides)) {
        const value = (made as Record<string, unknown>)[key]
        if (value === undefined) throw new Error(`setup returned nothing for '${key}' (${c.id})`)
        if (c.mode !== 'many') built.set(c.id, value)
        else addEntries(slots, c.id, value as Record<string, unknown>)
      }
    }
    options.onStep?.('routes')
    for (const { plugin, app, mount } of mounts) {
      at = `${plugin}: routes`
      await app.register(mount as never)
    }
    at = 'routes'
    for (const { app } of listeners.values()) await app.ready()
    options.onStep?.('start')
    for (const { plugin, fn } of starts) {
      at = `${plugin}: start`
      await fn()
    }
    options.onStep?.('listen')
    if (options.listen ?? true) {
      for (const [name, { app }] of listeners) {
        at = `listen ${name}`
        urls[name] = await open(app, role.listeners[name]!)
      }
    }
  } catch (cause) {
    await stop().catch(() => {})
    if (cause instanceof BootError) throw cause
    throw new BootError(role.name, [`${at}: ${cause instanceof Error ? cause.message : String(cause)}`], cause)
  }
  return {
    role: role.name,
    listeners: Object.fromEntries([...listeners].map(([name, l]) => [name, l.app as never])),
    urls,
    stop,
  }
}

async function open(app: App, config: ListenerConfig): Promise<string> {
  const { host, port } = config
  try {
    return await app.listen({ host, port: port!, backlog: 4096 })
  } catch (error) {
    const reasons: Readonly<Record<string, string>> = {
      EADDRINUSE: 'is in use by another process',
      EACCES: 'is not open to this user',
      EADDRNOTAVAIL: 'is no address of this machine',
    }
    const reason = reasons[(error as NodeJS.ErrnoException).code ?? '']
    if (reason === undefined) throw error
    const variables = config.origin?.variables ?? []
    const change = variables.length > 0 ? `; set ${variables.join(' or ')}` : ''
    throw new Error(`${host}:${port} ${reason}${change}${shownAt(config.origin)}`, { cause: error })
  }
}

function addEntries(slots: Map<string, Map<string, unknown>>, id: string, added: Record<string, unknown>): void {
  const entries = slots.get(id) ?? new Map<string, unknown>()
  for (const [name, item] of Object.entries(added)) {
    if (entries.has(name)) throw new Error(`'${id}' already has an entry '${name}'`)
    entries.set(name, item)
  }
  slots.set(id, entries)
}
