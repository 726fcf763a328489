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

/**
 * The conductor's private address, or a sentence why it is none. Specification 1.1: URLs on the hosting platform's public
 * domain are rejected at boot.
 */
export function conductorAddress(url: string, forbidden: readonly string[], publicHost: string | undefined): URL {
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
  const own = publicHost === undefined ? [] : [hostOf(publicHost)]
  for (const domain of [...publicDomains, ...forbidden.map(hostOf), ...own]) {
    if (host === domain || host.endsWith(`.${domain}`)) {
      throw wrong(`is on the public domain ${domain}; use the conductor's private address`)
    }
  }
  return address
}

/** `Gateway.example.com:443`, `https://gateway.example.com` or `*.example.com` as the host that URLs carry. */
function hostOf(text: string): string {
  const url = text.includes('://') ? text : `http://${text}`
  return (URL.canParse(url) ? new URL(url).hostname : text.toLowerCase()).replace(/^\*?\./, '').replace(/\.$/, '')
}
