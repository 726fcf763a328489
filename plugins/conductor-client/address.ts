import ipaddr from 'ipaddr.js'

// Hosts on which hosting platforms publish a service to the internet. The signed plane must stay on their private network.
const publicDomains = [
  'up.railway.app',
  'fly.dev',
  'onrender.com',
  'herokuapp.com',
  'ondigitalocean.app',
  'koyeb.app',
  'run.app',
  'azurecontainerapps.io',
  'azurewebsites.net',
  'amazonaws.com',
  'awsapprunner.com',
  'vercel.app',
]

/** Endings that name nothing on the internet. */
const internalDomains = ['internal', 'local', 'localhost', 'svc', 'lan', 'intranet', 'private', 'corp', 'home.arpa']

/** Kinds of addresses that are not routed on the internet, as ipaddr.js calls them. */
const privateRanges = ['loopback', 'private', 'carrierGradeNat', 'linkLocal', 'uniqueLocal']

export interface AddressRules {
  /** More public domains of the hosting platform. */
  readonly forbidden?: readonly string[]
  /** Domains of a private network whose names look like public ones. */
  readonly internal?: readonly string[]
  /** Where callers reach this gateway. */
  readonly publicHost?: string | undefined
}

/**
 * The conductor's private address, or a sentence why it is none. Specification 1.1: URLs on the hosting platform's public
 * domain are rejected at boot. No list knows all platforms, so a name that could be one on the internet must be allowed.
 */
export function conductorAddress(url: string, rules: AddressRules = {}): URL {
  const wrong = (why: string): Error => new Error(`CONDUCTOR_INTERNAL_URL ${why}`)
  if (!URL.canParse(url))
    throw wrong('is not a URL; set it to the private address of the conductor, e.g. http://conductor:8081')
  const address = new URL(url)
  if (address.protocol !== 'http:' && address.protocol !== 'https:') throw wrong('must begin with http:// or https://')
  if (address.username !== '' || address.search !== '' || address.hash !== '') {
    throw wrong('must be an origin and at most a path, without user, query or fragment')
  }
  // A trailing dot names the same host.
  const host = address.hostname.replace(/\.$/, '')
  const on = (domain: string): boolean => host === domain || host.endsWith(`.${domain}`)
  const { forbidden = [], internal = [], publicHost } = rules
  const own = publicHost === undefined ? [] : [hostOf(publicHost)]
  const domain = [...publicDomains, ...forbidden.map(hostOf), ...own].find(on)
  if (domain !== undefined) throw wrong(`is on the public domain ${domain}; use the conductor's private address`)
  if (isPrivate(host) || [...internalDomains, ...internal.map(hostOf)].some(on)) return address
  throw wrong(
    `names ${host}, which may be on the internet; use the conductor's private address, or add the domain of your private network to CONDUCTOR_PRIVATE_DOMAINS`,
  )
}

/** An address that is not routed on the internet, or a name without a dot. */
function isPrivate(host: string): boolean {
  const ip = host.replace(/^\[(.*)\]$/, '$1')
  return ipaddr.isValid(ip) ? privateRanges.includes(ipaddr.process(ip).range()) : !host.includes('.')
}

/** `Gateway.example.com:443`, `https://gateway.example.com` or `*.example.com` as the host that URLs carry. */
function hostOf(text: string): string {
  const url = text.includes('://') ? text : `http://${text}`
  return (URL.canParse(url) ? new URL(url).hostname : text.toLowerCase()).replace(/^\*?\./, '').replace(/\.$/, '')
}
