import { isIP } from 'node:net'
import type { FastifyRequest } from 'fastify'
import { Type } from '@sinclair/typebox'
import ipaddr from 'ipaddr.js'
import { invalidField } from '../contracts/http-errors.ts'
import { CommaList } from './settings.ts'

/** The setting of plugins that need the address of a client. */
export const trustedProxies = Type.Optional(
  CommaList(
    'Addresses and networks of your own proxies, whose X-Forwarded-For is trusted for the address of the client.',
  ),
)

/** An IP network: its address, and the number of significant bits. */
export type Network = [ipaddr.IPv4 | ipaddr.IPv6, number]

/** The network of `10.0.0.7` or `10.0.0.0/8`. Undefined for any other text. */
export function networkOf(text: string): Network | undefined {
  if (ipaddr.isValidCIDR(text)) return ipaddr.parseCIDR(text)
  if (!ipaddr.isValid(text)) return undefined
  const address = ipaddr.process(text)
  return [address, address.kind() === 'ipv4' ? 32 : 128]
}

/** Whether an address is in a network. An address of the other IP version never is. */
export const isWithin = (address: ipaddr.IPv4 | ipaddr.IPv6, [network, bits]: Network): boolean =>
  network.kind() === address.kind() && address.match(network, bits)

/** Whether an address is in one of the networks. A text that is no address, such as a local socket, is in none. */
export function isWithinAny(address: string, networks: readonly Network[]): boolean {
  if (!ipaddr.isValid(address)) return false
  const parsed = ipaddr.process(address)
  return networks.some((network) => isWithin(parsed, network))
}

const text = ([address, bits]: Network): string => `${address.toString()}/${bits}`

/** The networks that a client names, in PostgreSQL's notation. Throws 400 for an invalid network, or one outside `bounds`. */
export function networksOf(names: readonly string[], bounds: readonly string[] | null): string[] {
  const outer = bounds?.map((name) => networkOf(name)!)
  return names.map((name, i) => {
    const field = `body/allowedAddresses/${i}`
    const network = networkOf(name)
    if (!network || name.includes('%'))
      throw invalidField(field, 'must be an IP address or a network such as 10.0.0.0/8')
    if (network[0] instanceof ipaddr.IPv6 && network[0].isIPv4MappedAddress())
      throw invalidField(field, 'must be written as IPv4, as the addresses of clients are')
    const first = firstOf(name, network)
    if (first !== network[0].toString()) throw invalidField(field, `must be the network itself: ${first}/${network[1]}`)
    if (outer?.every(([address, bits]) => bits > network[1] || !isWithin(network[0], [address, bits]))) {
      throw invalidField(field, `must be within the addresses of the key that issues it: ${outer.map(text).join(', ')}`)
    }
    return text(network)
  })
}

function firstOf(name: string, [address]: Network): string {
  if (!name.includes('/')) return address.toString()
  const of = address.kind() === 'ipv4' ? ipaddr.IPv4 : ipaddr.IPv6
  return of.networkAddressFromCIDR(name).toString()
}

export type ClientAddress = (request: Pick<FastifyRequest, 'ip' | 'headers'>) => string

/**
 * Finds the client's address. If the connection comes from a trusted proxy, the proxy's X-Forwarded-For is read from the right, up to the first
 * address that is no trusted proxy; anybody can forge what stands left of that. A hop that is no address, such as `unknown`, hides who stands behind
 * it, so what stands right of it is the client: to skip it would believe a forged hop. IPv4 addresses are written as IPv4 even where the socket
 * reports IPv6. Throws a sentence for a proxy that is no address.
 */
export function createClientAddress(proxies: readonly string[] = []): ClientAddress {
  const networks = proxies.map((text) => {
    const network = networkOf(text)
    if (network) return network
    throw new Error(`AGENT_ORC_TRUSTED_PROXIES: '${text}' is neither an IP address nor a network`)
  })
  return ({ ip, headers }) => {
    const hops = networks.length > 0 ? [headers['x-forwarded-for'] ?? []].flat().join(',').split(',') : []
    let client = ip
    while (hops.length > 0 && isWithinAny(client, networks)) {
      const hop = addressOf(hops.pop()!)
      if (hop === undefined) break
      client = hop
    }
    return plain(client)
  }
}

/** The address of a hop, which some proxies write with its port. Undefined for a text that is no address. */
function addressOf(hop: string): string | undefined {
  const address = hop.trim().replace(/^\[([^\]]*)\](?::\d+)?$|^([\d.]+):\d+$/, '$1$2')
  return isIP(address) === 0 ? undefined : address
}

/** A single spelling for each address, without the zone of a link. A text that is no address, such as a local socket, stays unchanged. */
function plain(address: string): string {
  const bare = address.replace(/%.*$/, '')
  return ipaddr.isValid(bare) ? ipaddr.process(bare).toString() : address
}

/** The key under which a client is counted: one client may have every address of its IPv6 network, so the network counts as one. */
export function countedAs(address: string): string {
  if (!ipaddr.isValid(address)) return address
  const parsed = ipaddr.process(address)
  if (parsed instanceof ipaddr.IPv4) return parsed.toString()
  const words = parsed.parts.slice(0, 4).map((part) => part.toString(16))
  return `${words.join(':')}::/64`
}
