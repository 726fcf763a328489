import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { Counter, Gauge, type Registry } from 'prom-client'
import { type App, BootError, everyTenant, startOnRead, type TenantList } from '#kernel'
import { isClientId } from '#contracts/ids'
import { restoredFromLog } from '#contracts/profiles'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { Runtime, StateBundle } from '#contracts/runtime'
import type { SidecarHealth, SidecarLink } from '#contracts/sidecar'
import { sidecarErrors } from '#contracts/sidecar-errors'
import {
  runtimeSessionIdHeader,
  sidecarWire,
  workerInflightHeader,
  workerInstanceHeader,
} from '#contracts/wire/sidecar'
import { acceptLinks, serve, trusted } from '#kit'
import type { LinkedFiles } from '#kit/linked-files'
import { leadsTo } from '#kit/outbound'
import { createEventWriter, HostedRun, type RunOutcome } from './run.ts'

const drainTickMs = 25
/** Milliseconds after which a conductor has stored a fetched conversation. Until then the copy here counts as the only one. */
const storedMs = 1_000
/**
 * Milliseconds. Runners ask every few seconds; when none has asked for this long, a stopping sidecar does not wait for its conversations to be
 * fetched.
 */
const nobodyMs = 15_000

/** The runtimes and restrictions of a sidecar. */
interface Offered {
  readonly runtimes: ReadonlyMap<string, Runtime>
  /** Which tenants may use the models of a provider. A provider that is missing here serves every tenant. */
  readonly tenants: ReadonlyMap<string, TenantList>
}

/** The runs of a sidecar, for the HTTP routes and the in-process link alike. A session has at most one run. */
export class RunHost {
  readonly instance = randomUUID()
  readonly #mode: string
  readonly #runtimes: ReadonlyMap<string, Runtime>
  readonly #tenants: Offered['tenants']
  /** Providers whose models are not for every tenant. */
  readonly #restricted: Offered['tenants']
  /** Runtimes that restore conversations from the log, so that these need not be fetched from here. */
  readonly #restorable: ReadonlySet<string>
  readonly #log: FastifyBaseLogger
  readonly #count: ReturnType<typeof createMetrics>
  readonly #write = createEventWriter()
  /** The newest run of each session, until the run has released the session. */
  readonly #sessions = new Map<string, HostedRun>()
  /** Sessions whose conversation changed since its last export, each with a count of its runs. Sessions that are restored from the log are left out. */
  readonly #changes = new Map<string, number>()
  #files: Promise<LinkedFiles> | undefined
  #inflight = 0
  #draining = false
  #lastExport = -Infinity
  #lastAsked = -Infinity

  /** `mode` is the runtime that is served, or `all`. */
  constructor(mode: string, { runtimes, tenants }: Offered, log: FastifyBaseLogger, metrics: Registry) {
    this.#mode = mode
    this.#tenants = tenants
    this.#restricted = new Map([...tenants].filter(([, list]) => list !== everyTenant))
    this.#runtimes = mode === 'all' ? runtimes : new Map([...runtimes].filter(([name]) => name === mode))
    if (mode !== 'all' && this.#runtimes.size === 0) {
      const present = [...runtimes.keys()].toSorted().join(', ') || 'none'
      throw new BootError('sidecar', [
        `run-host: config.mode '${mode}' is not a runtime of this role; present: ${present}; set MODE to one of them or to all`,
      ])
    }
    this.#restorable = new Set([...this.#runtimes.keys()].filter(restoredFromLog))
    this.#log = log
    this.#count = createMetrics(metrics)
  }

  get inflight(): number {
    return this.#inflight
  }

  health(): SidecarHealth {
    this.#lastAsked = Date.now()
    // Computed per request, because a package that a runtime needs may be installed in the meantime.
    const missing = Object.fromEntries(
      [...this.#runtimes].flatMap(([name, { missing: why }]) => (why === undefined ? [] : [[name, why]])),
    )
    return {
      ok: true,
      runtime: this.#mode,
      // A runner offers the runtimes that its sidecars report. A stopping sidecar reports none and so gets no new session.
      runtimes: this.#draining ? [] : this.#names(),
      ...(Object.keys(missing).length > 0 ? { missing } : {}),
      instance: this.instance,
      inflight: this.#inflight,
      readsLinks: true,
      pid: process.pid,
      node: process.version,
      uptimeSeconds: Math.round(process.uptime()),
      memory: memory(),
    }
  }

  /**
   * Throws `sidecar_draining` when this sidecar is about to stop, so that the run goes elsewhere. A conversation that exists only here may still
   * run.
   */
  refuseWhenStopping({ sessionId, profile }: RunEnvelope): void {
    if (!this.#draining || this.#changes.has(sessionId)) return
    const stored = this.#restorable.has(profile.runtime) || Date.now() - this.#lastExport >= storedMs
    if (stored) throw sidecarErrors.sidecarDraining()
  }

  /**
   * Accepts a run, or throws an AppError before anything is streamed. The returned function starts it and yields chunks
   * of whole NDJSON lines that end with exactly one `result` or `error`.
   */
  accept(envelope: RunEnvelope): (signal: AbortSignal) => AsyncIterable<Buffer> {
    const { sessionId } = envelope
    const name = envelope.profile.runtime
    const runtime = this.#find(name, sessionId)
    this.#refuseModel(envelope)
    this.#refuseBusy(sessionId)
    if (envelope.resume && runtime.has?.(sessionId) === false) throw sidecarErrors.sessionStateMissing()
    const run = new HostedRun(envelope, runtime, {
      log: this.#log,
      write: this.#write,
      bring: async (...run) => (await this.#linked()).bring(...run),
      // The previous run has ended, but its adapter may still be cleaning up. This run starts after that.
      after: this.#sessions.get(sessionId)?.released,
      onEnd: (outcome) => {
        this.#inflight--
        this.#count.ended(name, outcome)
      },
    })
    this.#inflight++
    this.#count.started()
    this.#sessions.set(sessionId, run)
    void run.released.then(() => {
      if (this.#sessions.get(sessionId) === run) this.#sessions.delete(sessionId)
    })
    const changes = this.#changes
    if (runtime.exportState && !this.#restorable.has(name)) changes.set(sessionId, (changes.get(sessionId) ?? 0) + 1)
    return run.lines
  }

  /** A conductor that knows of the restriction refuses such a profile earlier. This check is here because the provider's key is here. */
  #refuseModel({ tenantId, profile: { model } }: RunEnvelope): void {
    const provider = model.split('/')[0]!
    if (this.#restricted.get(provider)?.allows(tenantId) !== false) return
    const usable = [...this.#tenants].flatMap(([name, tenants]) => (tenants.allows(tenantId) ? [`${name}/*`] : []))
    throw sidecarErrors.unknownModel({
      message: `There is no model '${model}' for this tenant; it may use: ${usable.toSorted().join(', ') || 'none'}.`,
    })
  }

  /** `name` is the runtime. It may be left out where the host serves only one. */
  async exportState(name: string | undefined, sessionId: string): Promise<StateBundle | undefined> {
    const runtime = this.#find(name, sessionId)
    const before = this.#changes.get(sessionId)
    const midRun = this.#busy(sessionId)
    const bundle = await runtime.exportState?.(sessionId)
    if (!midRun && this.#changes.get(sessionId) === before) this.#changes.delete(sessionId)
    this.#lastExport = Date.now()
    return bundle
  }

  async hydrate(name: string | undefined, sessionId: string, bundle: StateBundle): Promise<void> {
    const runtime = this.#find(name, sessionId)
    if (bundle.bytes.length === 0) throw sidecarErrors.invalidState()
    if (!runtime.hydrate) throw sidecarErrors.stateNotSupported()
    this.#refuseBusy(sessionId)
    await runtime.hydrate(sessionId, bundle)
    this.#changes.delete(sessionId)
  }

  async forget(name: string | undefined, sessionId: string): Promise<void> {
    const runtime = this.#find(name, sessionId)
    this.#changes.delete(sessionId)
    await runtime.forget?.(sessionId)
  }

  /** Resolves when no run is under way and every conversation that only this process has was fetched since, or after `ms`. */
  async drain(ms: number): Promise<void> {
    this.#draining = true
    const until = Date.now() + ms
    const unfetched = (): boolean =>
      Date.now() - this.#lastAsked < nobodyMs && (this.#changes.size > 0 || Date.now() - this.#lastExport < storedMs)
    while (Date.now() < until && (this.#inflight > 0 || unfetched())) await sleep(drainTickMs)
  }

  /** Ends every run with an `interrupted` error, and waits until all runs have released their sessions. */
  async stop(): Promise<void> {
    const all = [...this.#sessions.values()]
    for (const run of all) run.abort('interrupted')
    await Promise.all(all.map((run) => run.released))
    await (await this.#files)?.close()
  }

  /** Loaded by the first run that needs it, because most runs link nothing large. */
  #linked(): Promise<LinkedFiles> {
    return (this.#files ??= import('#kit/linked-files').then((kit) => new kit.LinkedFiles()))
  }
  #names(): string[] {
    return [...this.#runtimes].flatMap(([name, { missing }]) => (missing === undefined ? [name] : [])).toSorted()
  }
  #busy(sessionId: string): boolean {
    return this.#sessions.get(sessionId)?.ended === false
  }
  #refuseBusy(sessionId: string): void {
    if (this.#busy(sessionId)) throw sidecarErrors.sessionBusy()
  }
  #find(name: string | undefined, sessionId: string): Runtime {
    if (name === undefined && this.#mode === 'all') throw sidecarErrors.runtimeRequired()
    const runtime = this.#runtimes.get(name ?? this.#mode)
    if (!runtime) {
      throw sidecarErrors.unknownRuntime({
        message: `This sidecar has no runtime '${name}'; it has: ${this.#names().join(', ') || 'none'}.`,
      })
    }
    if (!isClientId(sessionId)) throw sidecarErrors.invalidSessionId()
    return runtime
  }
}

function memory(): Record<string, number> {
  const { rss, heapUsed, external } = process.memoryUsage()
  return { rssBytes: rss, heapUsedBytes: heapUsed, externalBytes: external }
}

/** The host for a runner in the same kernel: what the HTTP routes do, without the socket. */
export const localLink = (host: RunHost): SidecarLink => ({
  health: async () => host.health(),
  run: (envelope, signal, accepted) =>
    startOnRead(() => {
      const start = host.accept(envelope)
      accepted?.()
      return start(signal)[Symbol.asyncIterator]()
    }),
  exportState: (runtime, sessionId) => host.exportState(runtime, sessionId),
  hydrate: (runtime, sessionId, bundle) => host.hydrate(runtime, sessionId, bundle),
  forget: (runtime, sessionId) => host.forget(runtime, sessionId),
})

/** Which hosts a run that came over the network may contact. An empty list allows any host. */
interface Destinations {
  /** Hosts of the runners, for the tools of sessions. */
  readonly runnerHosts: readonly string[]
  /** Hosts of external MCP servers. */
  readonly mcpHosts: readonly string[]
}

function refuseStrangers({ sessionMcpUrl, mcpServers = [] }: RunEnvelope, allowed: Destinations): void {
  const refuse = (url: string, variable: string): never => {
    const host = URL.canParse(url) ? new URL(url).host : 'no host'
    throw sidecarErrors.hostNotAllowed({
      message: `This sidecar does not allow the host ${host}; add it to ${variable}.`,
    })
  }
  const { runnerHosts, mcpHosts } = allowed
  if (sessionMcpUrl !== undefined && runnerHosts.length > 0 && !leadsTo(sessionMcpUrl, runnerHosts)) {
    refuse(sessionMcpUrl, 'AGENT_ORC_RUNNER_HOSTS')
  }
  const strange = mcpHosts.length > 0 ? mcpServers.find(({ url }) => !leadsTo(url, mcpHosts)) : undefined
  if (strange) refuse(strange.url, 'AGENT_ORC_MCP_HOSTS')
}

/** The sidecar's API. Specification 4.23. */
export function sidecarRoutes(app: App, host: RunHost, allowed: Destinations): void {
  app.addHook('onRequest', async (_request, reply) => {
    void reply.header(workerInstanceHeader, host.instance)
  })
  acceptLinks(app, trusted)

  for (const route of [sidecarWire.health, sidecarWire.healthz]) {
    serve(app, route, () => {
      const { runtimes, missing, ...more } = host.health()
      return { json: { ...more, runtimes: [...runtimes], ...(missing ? { missing } : {}) } }
    })
  }

  serve(app, sidecarWire.run, ({ body, signal }) => {
    refuseStrangers(body, allowed)
    host.refuseWhenStopping(body)
    const start = host.accept(body)
    return { headers: { [workerInflightHeader]: String(host.inflight) }, lines: start(signal) }
  })

  serve(app, sidecarWire.exportState, async ({ params, query }) => {
    const bundle = await host.exportState(query.runtime, params.sessionId)
    if (!bundle) throw sidecarErrors.notFound()
    const headers = { [runtimeSessionIdHeader]: bundle.runtimeSessionId ?? '' }
    return { headers, bytes: bundle.bytes, type: bundle.contentType }
  })

  serve(app, sidecarWire.hydrate, async ({ params, query, headers, body }) => {
    const seeded = headers[runtimeSessionIdHeader]
    await host.hydrate(query.runtime, params.sessionId, {
      bytes: body ?? Buffer.alloc(0),
      contentType: String(headers['content-type'] ?? 'application/octet-stream'),
      ...(typeof seeded === 'string' && seeded !== '' ? { runtimeSessionId: seeded } : {}),
    })
  })

  serve(app, sidecarWire.forget, ({ params, query }) => host.forget(query.runtime, params.sessionId))
}

function createMetrics(registry: Registry) {
  const total = new Counter({
    name: 'sidecar_runs_total',
    help: 'Runs that ended, by runtime and outcome.',
    labelNames: ['runtime', 'status'] as const,
    registers: [registry],
  })
  const inflight = new Gauge({ name: 'sidecar_runs_inflight', help: 'Runs under way.', registers: [registry] })
  return {
    started: () => inflight.inc(),
    ended(runtime: string, status: RunOutcome) {
      inflight.dec()
      total.inc({ runtime, status })
    },
  }
}
