import { isIP } from 'node:net'
import { Type } from '@sinclair/typebox'
import type { FastifyRequest } from 'fastify'
import ipaddr from 'ipaddr.js'
import type { AppError } from '../contracts/errors.ts'
import { httpErrors } from '../contracts/http-errors.ts'
import { isWithin, type Network, networkOf } from './addresses.ts'
import { isProxied } from './forward-proxy.ts'

const name = '\\.?[A-Za-z0-9_-][A-Za-z0-9._-]*|\\[[0-9A-Fa-f:.]+\\]'
const network = '[0-9A-Fa-f:.]+/[0-9]{1,3}'
const url = 'https?://[^\\s,]+'
const listOf = (entry: string): string => `^(${entry})(,\\s*(${entry}))*$`

/** The form of a setting that names hosts. One text may contain several, separated by commas. */
const hostForm = {
  pattern: listOf(`${name}|${network}|${url}`),
  expects: 'a host name or address without a port, a network such as 10.0.0.0/8, or a URL whose host is meant',
}
/** The form of a setting that names origins, in browsers' notation. */
const originForm = {
  pattern: listOf('[a-z][a-z0-9+.-]*://[^/\\s,]+'),
  expects: 'an origin such as https://console.example.com, without a path',
}

/** The settings for each listener in a role file. */
export const webGuardSettings = {
  hosts: Type.Optional(
    Type.Array(Type.String(hostForm), {
      minItems: 1,
      description:
        'Host names under which it may be addressed: names, `.example.com` with its subdomains, addresses, networks. Other requests are refused. ' +
        'Absent: anything; on a loopback address, and where a route asks for no proof, localhost and any address.',
    }),
  ),
  origins: Type.Optional(
    Type.Array(Type.String(originForm), {
      description: 'Origins of web pages that may send requests, beside those of the addressed host. Absent: none.',
    }),
  ),
}

export const loopbackNames: ReadonlySet<string> = new Set(['localhost', '127.0.0.1', '::1', '[::1]'])

/**
 * The default hosts of a listener without authentication, and of one that only this machine reaches, where a browser is likely. A web page that reaches
 * this machine through DNS rebinding uses a name, never an address; probes use addresses.
 */
const withoutProof = ['localhost', '0.0.0.0/0', '::/0'] as const

const entriesOf = (settings: readonly string[]): string[] =>
  settings.flatMap((text) => text.split(',')).map((entry) => entry.trim().toLowerCase())

const bare = (host: string): string => host.replace(/^\[|\]$/g, '')

/** The network that an entry names, if any. A single address counts as a network. Throws for an invalid entry. */
function namedNetwork(entry: string): Network[] {
  const network = networkOf(entry)
  if (!network && entry.includes('/')) throw new Error(`'${entry}' is not a network`)
  return network ? [network] : []
}

/** Whether the host of a request is one of the hosts in a setting. */
function hostMatcher(settings: readonly string[]): (host: string) => boolean {
  const hosts = entriesOf(settings).map((entry) => (entry.includes('://') ? new URL(entry).hostname : entry))
  const networks = hosts.flatMap((host) => namedNetwork(bare(host)))
  const suffixes = hosts.filter((host) => host.startsWith('.'))
  const names = new Set(hosts)
  return (asked) => {
    const host = asked.toLowerCase()
    if (names.has(host)) return true
    const address = bare(host)
    if (isIP(address) === 0) return suffixes.some((suffix) => host.endsWith(suffix) || host === suffix.slice(1))
    const parsed = ipaddr.process(address)
    return networks.some((network) => isWithin(parsed, network))
  }
}

interface WebGuardOptions {
  /** The address that the listener is bound to. */
  readonly host: string
  readonly hosts?: readonly string[]
  readonly origins?: readonly string[]
}

/**
 * Decides what web pages may do at a listener. With DNS rebinding, a page whose name resolves to this machine makes its visitor's browser send
 * requests here and reads the answers; the browser then names the page's host. Requests of other pages name their origin; such a page cannot read
 * answers, but its writes would take effect. Clients other than browsers send no origin. Requests over a link are not checked, because no browser
 * can open a link.
 */
export class WebGuard {
  readonly #origins: ReadonlySet<string>
  readonly #named: boolean
  /** True when requests for any host are answered, so that a request without an origin need not be checked. */
  anyHost: boolean
  #serves: (host: string) => boolean

  constructor({ host, hosts, origins = [] }: WebGuardOptions) {
    this.#origins = new Set(entriesOf(origins))
    this.#named = hosts !== undefined
    this.anyHost = !hosts
    this.#serves = hosts ? hostMatcher(hosts) : () => true
    if (loopbackNames.has(host)) this.withoutProof()
  }

  /** Called when a route of the listener requires no authentication. Without hosts in the role file the defaults then apply. */
  withoutProof(): void {
    if (this.#named || !this.anyHost) return
    this.anyHost = false
    this.#serves = hostMatcher(withoutProof)
  }

  /** Why a request is refused; undefined: it is not. `ownOrigins`: the route judges origins itself. */
  refusal({ raw, hostname, host, headers: { origin } }: FastifyRequest, ownOrigins: boolean): AppError | undefined {
    // No page can make a browser use a listener as a proxy.
    if (isProxied(raw)) return undefined
    if (!this.#serves(hostname)) return httpErrors.unknownHost()
    if (origin === undefined || ownOrigins || this.#origins.has(origin.toLowerCase())) return undefined
    // The page comes from this very listener, or from a proxy that forwards its requests under its own name.
    if (origin.replace(/^https?:\/\//, '') === host.toLowerCase()) return undefined
    return httpErrors.originNotAllowed()
  }
}
