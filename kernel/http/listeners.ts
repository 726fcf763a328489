import type { FastifyBaseLogger } from 'fastify'
import type { ErrorTable } from '../contracts/errors.ts'
import type { Compilers } from '../kit/compilers.ts'
import { followTls } from '../kit/tls.ts'
import type { App } from './app.ts'
import type { Listener } from './listener.ts'
import type { ListenerConfig } from './listener-config.ts'

/** The only listener with metrics and documents, in a role that declares it and switches it on. */
export const operationsListener = 'operations'

/** The listeners of a role that are switched on, in the order of their declaration: outermost first. */
export class Listeners {
  readonly urls: Record<string, string> = {}
  readonly #declared: Readonly<Record<string, ListenerConfig>>
  readonly #errors: readonly ErrorTable[]
  readonly #compilers: Compilers | undefined
  readonly #on = new Map<string, Listener>()
  readonly #closings: { readonly name: string; readonly fn: () => Promise<void> }[] = []

  /** `errors`: everything that the role's plugins may answer. `compilers`: those of another role in this process, if it shares them. */
  constructor(
    declared: Readonly<Record<string, ListenerConfig>>,
    errors: readonly ErrorTable[],
    compilers: Compilers | undefined,
  ) {
    this.#declared = declared
    this.#errors = errors
    this.#compilers = compilers
  }

  /** `guarded`: the listeners whose callers a plugin authenticates. */
  async create(log: FastifyBaseLogger, logRequests: boolean, guarded: ReadonlySet<string>): Promise<void> {
    const open = Object.entries(this.#declared).filter(([, { port }]) => port !== undefined)
    if (open.length === 0) return
    // Loaded on demand: it is half of what the kernel loads, and a role without ports does not need it.
    const { createListener } = await import('./listener.ts')
    const compilers = this.#compilers ?? (await import('../kit/compilers.ts')).createCompilers()
    for (const [name, config] of open) {
      const named = { log: log.child({ listener: name }), guarded: guarded.has(name) }
      const tls = config.tls?.cert ? followTls(config.tls, named.log) : undefined
      const options = { ...named, logRequests, errors: this.#errors, tls, compilers }
      this.#on.set(name, await createListener(name, config, options))
    }
    await this.#document()
  }

  /** Each listener serves its own document, unless the role has an operations listener, which serves them all. */
  async #document(): Promise<void> {
    const { serveDocument } = await import('./openapi.ts')
    const { [operationsListener]: operations, ...others } = this.apps
    if (operations) serveDocument(operations, '/openapi.json', operations)
    for (const [name, app] of Object.entries(others)) {
      if (operations) serveDocument(operations, `/openapi/${name}.json`, app)
      else serveDocument(app, '/openapi.json', app)
    }
  }

  get names(): string[] {
    return [...this.#on.keys()]
  }
  get apps(): Record<string, App> {
    return Object.fromEntries([...this.#on].map(([name, { app }]) => [name, app]))
  }
  /** The listener that closes last. */
  get innermost(): App | undefined {
    return [...this.#on.values()].at(-1)?.app
  }
  /** Undefined when the listener is switched off. Throws when it is not declared. */
  find(name: string): App | undefined {
    if (!(name in this.#declared)) throw new Error(`this role declares no listener '${name}'; add it under listeners`)
    return this.#on.get(name)?.app
  }
  urlOf(name: string): string {
    const url = this.urls[name]
    if (url === undefined) throw new Error(`listener '${name}' is not listening (yet)`)
    return url
  }
  beforeClose(name: string, fn: () => Promise<void>): void {
    this.#closings.push({ name, fn })
  }

  async ready(): Promise<void> {
    for (const { app } of this.#on.values()) await app.ready()
  }
  async listen(name: string): Promise<void> {
    this.urls[name] = await this.#on.get(name)!.listen()
  }
  async close(failed: (error: unknown) => void): Promise<void> {
    // All listeners leave before any of them closes, so that clients stop calling a process that may refuse new work for a long time.
    for (const { leave } of this.#on.values()) leave()
    // Close one after the other, because a request in one listener may still need the next one.
    for (const [name, { app }] of this.#on) {
      const closings = this.#closings.filter((closing) => closing.name === name)
      await Promise.all(closings.map(({ fn }) => fn().catch(failed)))
      await app.close().then(undefined, failed)
    }
  }
}
