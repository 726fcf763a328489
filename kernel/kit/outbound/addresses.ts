import { lookup as systemLookup, type LookupAddress } from 'node:dns'
import type { LookupFunction } from 'node:net'
import ipaddr from 'ipaddr.js'

/** A cloud's metadata service that lies in public address space. */
const hostedMetadata = '168.63.129.16'

/** True for an address of the open internet. Loopback, private, link-local, mapped, translated and reserved ones are not. */
export function isPublicAddress(address: string): boolean {
  if (!ipaddr.isValid(address)) return false
  // `process` unwraps ::ffff:a.b.c.d, so that a mapped address is judged by what it reaches.
  const parsed = ipaddr.process(address)
  if (parsed.range() !== 'unicast' || parsed.toString() === hostedMetadata) return false
  // What IANA has given out so far; the rest of IPv6 (for example ::a.b.c.d) is nobody's.
  return parsed instanceof ipaddr.IPv4 || (parsed.parts[0]! & 0xe000) === 0x2000
}

/** The part of dns.lookup that the guard needs; tests answer as a hostile name server. */
export type Resolve = (
  host: string,
  callback: (error: Error | null, addresses: readonly LookupAddress[]) => void,
) => void

export const systemResolve: Resolve = (host, callback) => systemLookup(host, { all: true }, callback)

export class ForbiddenAddressError extends Error {
  constructor() {
    super('the host resolves to an address that is not public')
    this.name = 'ForbiddenAddressError'
  }
}

/**
 * A `lookup` for sockets that only lets permitted addresses through. Checking here, in the look-up whose answer is
 * connected to, is what defeats a name that changes its address between check and use.
 */
export const guardedLookup =
  (resolve: Resolve, permits: (address: string) => boolean): LookupFunction =>
  (host, options, callback) =>
    resolve(host, (error, addresses) => {
      const allowed = error ? [] : addresses.filter(({ address }) => permits(address))
      const [first] = allowed
      if (!first) return callback(error ?? new ForbiddenAddressError(), '', 0)
      if (options.all) callback(null, allowed as LookupAddress[])
      else callback(null, first.address, first.family)
    })
