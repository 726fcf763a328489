import { isIPv6 } from 'node:net'
import ipaddr from 'ipaddr.js'

type Range = [ipaddr.IPv4 | ipaddr.IPv6, number]

/** The network of `10.0.0.7` or `10.0.0.0/8`. Throws a sentence for what is none. */
function rangeOf(text: string): Range {
  if (ipaddr.isValidCIDR(text)) return ipaddr.parseCIDR(text)
  if (!ipaddr.isValid(text))
    throw new Error(`AGENT_ORC_TRUSTED_PROXIES: '${text}' is neither an IP address nor a network`)
  const address = ipaddr.process(text)
  return [address, address.kind() === 'ipv4' ? 32 : 128]
}

/**
 * The client's address. If it is a trusted proxy's, the proxy's own word counts, and so on outwards: the result is the first address
 * from the right that is no trusted proxy. Anybody can forge what stands left of that.
 */
export function createClientAddress(trustedProxies: readonly string[]) {
  const ranges = trustedProxies.map(rangeOf)
  const trusted = (text: string): boolean => {
    if (!ipaddr.isValid(text)) return false
    const address = ipaddr.process(text)
    return ranges.some(([network, bits]) => network.kind() === address.kind() && address.match(network, bits))
  }
  return (peer: string, forwardedFor: string | string[] | undefined): string => {
    const hops = [forwardedFor ?? []].flat().join(',').split(',')
    const path = [...hops.map((hop) => hop.trim()).filter((hop) => ipaddr.isValid(hop)), peer]
    return path.findLast((address, i) => i === 0 || !trusted(address))!
  }
}

/** One client may have every address of its IPv6 network: they count together. */
export function countedAs(address: string): string {
  if (!isIPv6(address)) return address
  const parsed = ipaddr.process(address)
  return parsed instanceof ipaddr.IPv6
    ? `${parsed.parts
        .slice(0, 4)
        .map((part) => part.toString(16))
        .join(':')}::/64`
    : parsed.toString()
}
