import { isIP } from 'node:net'

/** Why a URL that a tenant gave may not be asked. */
export type Refusal = 'not_a_url' | 'scheme' | 'credentials' | 'address' | 'host'

export interface OutboundPolicy {
  /** Which addresses may be connected to. */
  readonly permits: (address: string) => boolean
  readonly schemes: readonly string[]
  /** Empty: any. `example.com` or `.example.com` (with its subdomains). */
  readonly hosts?: readonly string[]
}

/**
 * The URL when it may be asked, or why not. WHATWG parsing turns 0x7f.1, 2130706433 and their kin into plain addresses
 * first; a literal is judged here, because sockets do not look it up and the guard of the look-up never sees it.
 */
export function outboundUrl(text: string, { permits, schemes, hosts = [] }: OutboundPolicy): URL | Refusal {
  if (!URL.canParse(text)) return 'not_a_url'
  const url = new URL(text)
  if (!schemes.includes(url.protocol.slice(0, -1))) return 'scheme'
  if (url.username !== '' || url.password !== '') return 'credentials'
  const host = hostOf(url)
  if (isIP(host) !== 0 && !permits(host)) return 'address'
  if (hosts.length > 0 && !isAmong(host, hosts)) return 'host'
  return url
}

export const hostOf = (url: URL): string =>
  url.hostname
    .replace(/^\[|\]$/g, '')
    .replace(/\.$/, '')
    .toLowerCase()

/** Whether a host is one of a list; an entry that begins with a dot stands for a domain and all its subdomains. */
export const isAmong = (host: string, list: readonly string[]): boolean =>
  list.some((entry) => {
    const allowed = entry.toLowerCase()
    return allowed.startsWith('.') ? host === allowed.slice(1) || host.endsWith(allowed) : host === allowed
  })
