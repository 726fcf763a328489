import { Value } from '@sinclair/typebox/value'
import type { FastifyInstance } from 'fastify'
import { Registry } from 'prom-client'
import { type App, createListener, type Listener } from './http.ts'
import { createLogger } from './logger.ts'
import { BootError, plan, type Role, settings } from './plan.ts'

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
  /** Told what is being done, for progress on a terminal. */
  readonly onStep?: (step: string) => void
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
  const stops: (() => Promise<void>)[] = []
  let stopping: Promise<void> | undefined
  const stop = (): Promise<void> => (stopping ??= unwind())
  const unwind = async (): Promise<void> => {
    const closing = [...listeners.values()].map((l) => () => l.app.close())
    const failures: unknown[] = []
    // Listeners close together: a request inside one role may still need another listener of it to finish.
    for (const r of await Promise.allSettled(closing.map((close) => close()))) {
      if (r.status === 'rejected') failures.push(r.reason)
    }
    for (const fn of stops.toReversed()) await fn().catch((error: unknown) => failures.push(error))
    if (failures.length > 0) throw new AggregateError(failures, `role '${role.name}' did not stop cleanly`)
  }
  let at = 'listeners'
  try {
    for (const [name, { port }] of Object.entries(role.listeners)) {
      if (port !== undefined)
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
        onStart: (fn) => void starts.push({ plugin: name, fn }),
        onStop: (fn) => void stops.push(fn),
      })
      for (const [key, c] of Object.entries(plugin.provides)) {
        const value = (made as Record<string, unknown>)[key]
        if (c.mode !== 'many') built.set(c.id, value)
        else addEntries(slots, c.id, value as Record<string, unknown>)
      }
    }
    for (const { plugin, app, mount } of mounts) {
      at = `${plugin}: routes`
      await app.register(mount as never)
    }
    at = 'routes'
    for (const { app } of listeners.values()) await app.ready()
    for (const { plugin, fn } of starts) {
      at = `${plugin}: start`
      await fn()
    }
    if (options.listen ?? true) {
      for (const [name, { app }] of listeners) {
        at = `listen ${name}`
        const { host, port } = role.listeners[name]!
        urls[name] = await app.listen({ host, port: port!, backlog: 4096 })
      }
    }
  } catch (cause) {
    await stop().catch(() => {})
    throw cause instanceof BootError ? cause : new BootError(role.name, [`${at}: ${(cause as Error).message}`], cause)
  }
  return {
    role: role.name,
    listeners: Object.fromEntries([...listeners].map(([name, l]) => [name, l.app as never])),
    urls,
    stop,
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
