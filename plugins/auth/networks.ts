import ipaddr from 'ipaddr.js'
import { invalidField } from '#kernel'
import { isWithin, type Network, networkOf } from '#kit'

const text = ([address, bits]: Network): string => `${address.toString()}/${bits}`

/** The networks that a client names, written as PostgreSQL does; throws 400 for one that is none, or not within `bounds`. */
export function networksOf(names: readonly string[], bounds: readonly string[] | null): string[] {
  const outer = bounds?.map((name) => networkOf(name)!)
  return names.map((name, i) => {
    const field = `body/allowedAddresses/${i}`
    const network = networkOf(name)
    if (!network) throw invalidField(field, 'must be an IP address or a network such as 10.0.0.0/8')
    const first = firstOf(name, network)
    if (first !== network[0].toString()) throw invalidField(field, `must be the network itself: ${first}/${network[1]}`)
    if (outer?.every(([address, bits]) => bits > network[1] || !isWithin(network[0], [address, bits]))) {
      throw invalidField(field, `must be within the addresses of the key that mints it: ${outer.map(text).join(', ')}`)
    }
    return text(network)
  })
}

/** The first address of a network. */
function firstOf(name: string, [address]: Network): string {
  if (!name.includes('/')) return address.toString()
  const of = address.kind() === 'ipv4' ? ipaddr.IPv4 : ipaddr.IPv6
  return of.networkAddressFromCIDR(name).toString()
}
