import { lookup as systemLookup, type LookupAddress } from 'node:dns'
import { Resolver } from 'node:dns/promises'
import { isIP, type LookupFunction } from 'node:net'
import { callbackify } from 'node:util'
import ipaddr from 'ipaddr.js'

/** Why a URL from a tenant must not be requested. */
export type Refusal = 'not_a_url' | 'scheme' | 'credentials' | 'address' | 'host'

interface OutboundPolicy {
  /** Which addresses may be connected to. */
  readonly permits: (address: string) => boolean
  readonly schemes: readonly string[]
  /** Allowed hosts: `example.com`, or `.example.com` with its subdomains. Empty allows any host. */
  readonly hosts?: readonly string[]
}

/**
 * The URL if it may be requested, otherwise the reason why not. WHATWG parsing first turns 0x7f.1, 2130706433 and similar forms into plain
 * addresses. A literal address is judged here, because sockets do not look it up and the guard of the look-up never sees it.
 */
export function outboundUrl(text: string, { permits, schemes, hosts = [] }: OutboundPolicy): URL | Refusal {
  if (!URL.canParse(text)) return 'not_a_url'
  const url = new URL(text)
  if (!schemes.includes(url.protocol.slice(0, -1))) return 'scheme'
  if (url.username !== '' || url.password !== '') return 'credentials'
  const host = hostOf(url)
  if (isIP(host) !== 0 ? !permits(host) : metadataNames.has(host)) return 'address'
  if (hosts.length > 0 && !isAmong(host, hosts)) return 'host'
  return url
}

export const hostOf = (url: URL): string =>
  url.hostname
    .replace(/^\[|\]$/g, '')
    .replace(/\.$/, '')
    .toLowerCase()

/** Whether a host is in a list. An entry that begins with a dot stands for a domain and all its subdomains. */
export const isAmong = (host: string, list: readonly string[]): boolean =>
  list.some((entry) => {
    const allowed = entry.toLowerCase()
    return allowed.startsWith('.') ? host === allowed.slice(1) || host.endsWith(allowed) : host === allowed
  })

/** Whether a URL leads to an entry of a list: `example.com`, `.example.com` (with its subdomains), or an address, each with a port or for any port. */
export function leadsTo(text: string, list: readonly string[]): boolean {
  if (!URL.canParse(text)) return false
  const url = new URL(text)
  const port = url.port || (url.protocol === 'https:' ? '443' : '80')
  return list.some((entry) => {
    const [, host = '', only = port] = /^(\[.*\]|[^:]*)(?::(\d+))?$/.exec(entry) ?? []
    return only === port && isAmong(hostOf(url), [host.replace(/^\[|\]$/g, '')])
  })
}

/**
 * Addresses where clouds hand out a machine's credentials, in addition to 169.254.0.0/16: those of Azure, Alibaba, AWS including its name and time
 * services, and Google.
 */
const metadata = ['168.63.129.16/32', '100.100.100.200/32', 'fd00:ec2::/32', 'fd20:ce::254/128'].map((network) =>
  ipaddr.parseCIDR(network),
)
/** The host names of these services. Each resolves only on such a machine. */
const metadataNames: ReadonlySet<string> = new Set([
  'metadata',
  'metadata.google.internal',
  'metadata.goog',
  'instance-data',
  'instance-data.ec2.internal',
  'metadata.azure.internal',
  'metadata.tencentyun.com',
])

/** An address as it is reached. Undefined for an invalid address, and for a metadata service. */
function reached(address: string): ipaddr.IPv4 | ipaddr.IPv6 | undefined {
  if (!ipaddr.isValid(address)) return undefined
  // `process` unwraps ::ffff:a.b.c.d, so that a mapped address is judged by the address that it reaches.
  const parsed = ipaddr.process(address)
  const hidden = metadata.some((network) => network[0].kind() === parsed.kind() && parsed.match(network))
  return hidden ? undefined : parsed
}

/** True for an address of the open internet. False for loopback, private, link-local, mapped, translated and reserved addresses. */
export function isPublicAddress(address: string): boolean {
  const parsed = reached(address)
  if (parsed?.range() !== 'unicast') return false
  // IANA has assigned only 2000::/3 so far. The rest of IPv6, for example ::a.b.c.d, belongs to nobody.
  return parsed instanceof ipaddr.IPv4 || (parsed.parts[0]! & 0xe000) === 0x2000
}

const ofNetworks: ReadonlySet<string> = new Set([
  'private',
  'loopback',
  'uniqueLocal',
  'carrierGradeNat',
  'unspecified',
])

/**
 * True for an address that the operator's own server may have: public, or in a private network. False for link-local addresses, metadata services,
 * and addresses that lead to them by translation (NAT64, 6to4).
 */
export const isNetworkAddress = (address: string): boolean =>
  isPublicAddress(address) || ofNetworks.has(reached(address)?.range() ?? '')

/** The permitted addresses for the settings `public` and `network`. */
export const permittedAddresses = { public: isPublicAddress, network: isNetworkAddress } as const

/** The part of dns.lookup that the guard needs. Tests use it to act as a hostile name server. */
export type Resolve = (
  host: string,
  callback: (error: Error | null, addresses: readonly LookupAddress[]) => void,
) => void

/** Resolves names as the machine does, including its own files. For names that operators choose. */
export const systemResolve: Resolve = (host, callback) => systemLookup(host, { all: true }, callback)

/**
 * Resolves names through name servers, for names that tenants choose. The system's look-ups share a few threads: two names for which a hostile
 * server gives no answer would delay every other look-up of the process for ten seconds each. These look-ups need no threads.
 */
export const publicResolve = (servers?: readonly string[]): Resolve => {
  const addressesOf = async (host: string): Promise<readonly LookupAddress[]> => {
    if (isIP(host) !== 0) return [{ address: host, family: isIP(host) }]
    if (/(^|\.)localhost$/.test(host)) return [{ address: '127.0.0.1', family: 4 }]
    const resolver = new Resolver({ timeout: 3_000, tries: 2 })
    if (servers) resolver.setServers(servers)
    const [four, six] = await Promise.allSettled([resolver.resolve4(host), resolver.resolve6(host)])
    const found = [four, six].flatMap((answer, i) =>
      answer.status === 'fulfilled' ? answer.value.map((address) => ({ address, family: i === 0 ? 4 : 6 })) : [],
    )
    if (found.length > 0 || four.status === 'fulfilled') return found
    const { code } = four.reason as { code?: string }
    throw Object.assign(new Error(`${host} could not be looked up`), { code: code === 'ENODATA' ? 'ENOTFOUND' : code })
  }
  return callbackify(addressesOf)
}

export class ForbiddenAddressError extends Error {
  constructor() {
    super('the host resolves to an address that may not be called')
    this.name = 'ForbiddenAddressError'
  }
}

/**
 * A `lookup` for sockets that permits only certain addresses. It checks the very answer that is connected to, which defeats a name that changes its
 * address between check and use.
 */
export const guardedLookup = (resolve: Resolve, permits: (address: string) => boolean): LookupFunction => {
  // A name that must be public may be chosen by anybody, so it is resolved without the system's threads.
  const ask = resolve === systemResolve && permits === isPublicAddress ? publicResolve() : resolve
  return (host, options, callback) =>
    ask(host, (error, addresses) => {
      const allowed = error ? [] : addresses.filter(({ address }) => permits(address))
      const [first] = allowed
      if (!first) return callback(error ?? new ForbiddenAddressError(), '', 0)
      if (options.all) callback(null, allowed as LookupAddress[])
      else callback(null, first.address, first.family)
    })
}
