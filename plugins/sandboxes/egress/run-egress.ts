import { randomBytes } from 'node:crypto'
import { getCACertificates } from 'node:tls'
import { Agent, type Dispatcher } from 'undici'
import type { EgressAccess, EgressHost, EgressOrder } from '#contracts/egress'
import { secretsIn, withSecrets } from '#contracts/secrets'
import { workerPaths } from '#contracts/wire/worker'
import { Mask } from '#kit'
import {
  guardedLookup,
  isNetworkAddress,
  isPublicAddress,
  outboundUrl,
  type Resolve,
  systemResolve,
} from '#kit/outbound'
import { sandboxErrors } from '../errors.ts'
import { authorityOf, isOn, isWithin, type Target } from './target.ts'

/** How many requests of a run may run at once. */
export const requestsAtOnce = 16
const connectMs = 10_000
/** How long a request may take, its answer included. */
const longestMs = 10 * 60_000
/** How long a host may be silent before its answer or within it. */
const silentMs = 300_000

/** The way on which a permitted request is sent. */
export interface Admitted {
  readonly dispatcher: Dispatcher
  readonly origin: string
  /** The headers to add, with the values of secrets. Names are in lower case. */
  readonly headers: Readonly<Record<string, string>>
  /** Masks the values that this host receives. A host cannot repeat other values. */
  readonly mask: Mask
  /** Whether the host is one of the operator's own or on the public internet. */
  readonly place: 'own' | 'public'
}

interface EgressSettings {
  /** Certificate authorities beside those of the system, as PEM. */
  readonly ca?: () => string | undefined
  readonly resolve?: Resolve
  /** Replaces `longestMs` in tests; ten minutes by default. */
  readonly requestMs?: number
}

/**
 * The hosts that the sandbox of one run may reach, from when its worker is ready until the run is over. The key, the values of
 * secrets and the connections end with it.
 */
export class RunEgress {
  readonly key = randomBytes(24).toString('base64url')
  readonly sessionId: string
  readonly #order: EgressOrder
  readonly #settings: EgressSettings
  readonly #agents = new Map<boolean, Agent>()
  readonly #masks = new Map<string, Mask>()
  readonly #over = new AbortController()
  #underWay = 0

  constructor(order: EgressOrder, sessionId: string, settings: EgressSettings) {
    this.#order = order
    this.sessionId = sessionId
    this.#settings = settings
  }

  /** How long a request may take, its answer included. */
  get requestMs(): number {
    return this.#settings.requestMs ?? longestMs
  }
  /** Aborts when the run is over. */
  get signal(): AbortSignal {
    return this.#over.signal
  }
  /** The access for a worker that reaches the runner at this address. */
  accessAt(runnerUrl: string): EgressAccess {
    return {
      proxyUrl: new URL(runnerUrl).origin.replace('://', `://run:${this.key}@`),
      baseUrl: runnerUrl.replace(/\/+$/, '') + workerPaths(this.sessionId).egress,
      key: this.key,
    }
  }
  /** Permits a request, or throws an AppError: 403 `egress_not_allowed`, 403 `egress_address_not_allowed`. */
  admit(target: Target, method: string): Admitted {
    const entry = this.#entryFor(target, method)
    const { own } = entry
    const origin = `https://${authorityOf(target)}`
    // A literal address causes no look-up, so the connection would not check it; it is checked here.
    const permits = own ? isNetworkAddress : isPublicAddress
    if (typeof outboundUrl(origin, { permits, schemes: ['https'] }) === 'string') throw addressRefused(target)
    const values = this.#valuesFor(entry)
    const headers = Object.entries(entry.headers ?? {}).map(([name, text]) => [
      name.toLowerCase(),
      withSecrets(text, (secret) => values.get(secret)!),
    ])
    return {
      dispatcher: this.#agent(own),
      origin,
      headers: Object.fromEntries(headers) as Record<string, string>,
      mask: this.#maskFor(entry),
      place: own ? 'own' : 'public',
    }
  }
  /** Counts a request. The caller must call the returned function when the request is over. AppError 429 `too_many_egress_requests`. */
  begin(): () => void {
    if (this.#underWay >= requestsAtOnce) throw sandboxErrors.tooManyEgressRequests({ headers: { 'retry-after': '1' } })
    this.#underWay++
    let over = false
    return () => {
      if (!over) this.#underWay--
      over = true
    }
  }
  end(): void {
    if (this.signal.aborted) return
    this.#over.abort(sandboxErrors.noRunUnderWay())
    for (const agent of this.#agents.values()) void agent.destroy()
  }

  #entryFor(target: Target, method: string): EgressHost {
    const there = this.#order.hosts.filter((entry) => isOn(target, entry))
    const below = there.filter((entry) => isWithin(target.path, entry))
    const found = below.find(({ methods }) => methods === undefined || methods.some((one) => one === method))
    if (found) return found
    const host = authorityOf(target)
    const listed = this.#order.hosts.map(authorityOf).join(', ') || 'none'
    const message =
      there.length === 0
        ? `This sandbox may not reach ${host}: name it in egress of the profile, {"host": "${host}"}. It may reach: ${listed}.`
        : below.length === 0
          ? `This sandbox may not request this path of ${host}: name it in paths of the host, in egress of the profile.`
          : `This sandbox may not send ${method} to ${host}: name it in methods of the host, in egress of the profile.`
    throw sandboxErrors.egressNotAllowed({ message })
  }
  /** The values of the secrets that a host's headers refer to, by name. */
  #valuesFor({ headers = {} }: EgressHost): ReadonlyMap<string, string> {
    const { secrets } = this.#order
    const names = Object.values(headers).flatMap(secretsIn)
    return new Map(
      names.map((name) => {
        const value = Object.hasOwn(secrets, name) ? secrets[name] : undefined
        if (value === undefined) throw new Error('an order of egress lacks a secret that it refers to')
        return [name, value]
      }),
    )
  }
  /** Masks the values that any entry of the same host sends, because one path of a host may show what another path received. */
  #maskFor({ host, port }: EgressHost): Mask {
    const place = `${host}:${port}`
    const entries = this.#order.hosts.filter((one) => one.host === host && one.port === port)
    const mask = this.#masks.get(place) ?? new Mask(entries.flatMap((one) => [...this.#valuesFor(one).values()]))
    this.#masks.set(place, mask)
    return mask
  }
  /** Runs do not share connections, because some hosts authenticate a connection instead of a request. */
  #agent(own: boolean): Agent {
    const { resolve = systemResolve } = this.#settings
    const ca = this.#settings.ca?.()
    const agent =
      this.#agents.get(own) ??
      new Agent({
        connect: {
          timeout: connectMs,
          lookup: guardedLookup(resolve, own ? isNetworkAddress : isPublicAddress),
          ...(ca === undefined ? {} : { ca: [...getCACertificates('default'), ca] }),
        },
        connections: requestsAtOnce,
        pipelining: 1,
        allowH2: false,
        headersTimeout: silentMs,
        bodyTimeout: silentMs,
        maxHeaderSize: 32 * 1024,
      })
    this.#agents.set(own, agent)
    return agent
  }
}

export const addressRefused = (target: Target) =>
  sandboxErrors.egressAddressNotAllowed({
    message: `${authorityOf(target)} is in a private network, so the operator must allow it in ownHosts of the plugin egress.`,
  })

/** The runs that may reach hosts, by their keys. */
export class EgressRuns {
  readonly #runs = new Map<string, RunEgress>()
  readonly #settings: EgressSettings

  constructor(settings: EgressSettings) {
    this.#settings = settings
  }

  open(order: EgressOrder, sessionId: string): RunEgress {
    const run = new RunEgress(order, sessionId, this.#settings)
    this.#runs.set(run.key, run)
    run.signal.addEventListener('abort', () => this.#runs.delete(run.key), { once: true })
    return run
  }
  find(key: string | undefined): RunEgress | undefined {
    return key === undefined ? undefined : this.#runs.get(key)
  }
  close(): void {
    for (const run of this.#runs.values()) run.end()
  }
}
