import type { FastifyRequest } from 'fastify'
import { Type } from '@sinclair/typebox'
import ipaddr from 'ipaddr.js'
import { invalidField } from '../contracts/http-errors.ts'
import { CommaList } from './settings.ts'

/** The setting of plugins that have to know who a client is. */
export const trustedProxies = Type.Optional(
  CommaList(
    'Addresses and networks of your own proxies, whose X-Forwarded-For is trusted for the address of the client.',
  ),
)

/** An IP network: its address, and how many bits of it count. */
export type Network = [ipaddr.IPv4 | ipaddr.IPv6, number]

/** The network of `10.0.0.7` or `10.0.0.0/8`; undefined for any other text. */
export function networkOf(text: string): Network | undefined {
  if (ipaddr.isValidCIDR(text)) return ipaddr.parseCIDR(text)
  if (!ipaddr.isValid(text)) return undefined
  const address = ipaddr.process(text)
  return [address, address.kind() === 'ipv4' ? 32 : 128]
}

/** Whether an address is in a network; those of the other version never are. */
export const isWithin = (address: ipaddr.IPv4 | ipaddr.IPv6, [network, bits]: Network): boolean =>
  network.kind() === address.kind() && address.match(network, bits)

const text = ([address, bits]: Network): string => `${address.toString()}/${bits}`

/** The networks that a client names, written as PostgreSQL does; throws 400 for an invalid one, or one outside `bounds`. */
export function networksOf(names: readonly string[], bounds: readonly string[] | null): string[] {
  const outer = bounds?.map((name) => networkOf(name)!)
  return names.map((name, i) => {
    const field = `body/allowedAddresses/${i}`
    const network = networkOf(name)
    if (!network) throw invalidField(field, 'must be an IP address or a network such as 10.0.0.0/8')
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
 * Finds the client's address. If it is a trusted proxy's, the proxy's own word counts (X-Forwarded-For), and so on outwards: the
 * result is the first address from the right that is no trusted proxy. Anybody can forge what stands left of that. An IPv4
 * address is written as one, also where the socket has it as IPv6. Throws a sentence for a proxy that is no address.
 */
export function createClientAddress(proxies: readonly string[] = []): ClientAddress {
  const networks = proxies.map((text) => {
    const network = networkOf(text)
    if (network) return network
    throw new Error(`AGENT_ORC_TRUSTED_PROXIES: '${text}' is neither an IP address nor a network`)
  })
  const trusted = (text: string): boolean => {
    if (!ipaddr.isValid(text)) return false
    const address = ipaddr.process(text)
    return networks.some((network) => isWithin(address, network))
  }
  return ({ ip, headers }) => {
    const forwardedFor = networks.length > 0 ? [headers['x-forwarded-for'] ?? []].flat().join(',').split(',') : []
    const path = [...forwardedFor.map((hop) => hop.trim()).filter((hop) => ipaddr.isValid(hop)), ip]
    return plain(path.findLast((address, i) => i === 0 || !trusted(address))!)
  }
}

/** One spelling for each address, without the zone of a link. What is no address, such as a socket of the machine, stays. */
function plain(address: string): string {
  const bare = address.replace(/%.*$/, '')
  return ipaddr.isValid(bare) ? ipaddr.process(bare).toString() : address
}

/** One client may have every address of its IPv6 network: they count together. */
export function countedAs(address: string): string {
  if (!ipaddr.isValid(address)) return address
  const parsed = ipaddr.process(address)
  if (parsed instanceof ipaddr.IPv4) return parsed.toString()
  const words = parsed.parts.slice(0, 4).map((part) => part.toString(16))
  return `${words.join(':')}::/64`
}
