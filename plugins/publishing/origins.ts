import { badOrigin } from './errors.ts'

const shape = /^[a-z][a-z0-9+.-]*:\/\/[^/?#@\\\s]+$/i

/** A browser sends exactly `scheme://host[:port]`, so anything else in the list could never match, or match too much. */
export function checkOrigins(origins: readonly string[]): void {
  for (const [i, origin] of origins.entries()) {
    const exact = shape.test(origin) ? serialized(origin) : undefined
    if (exact === undefined) throw badOrigin(i, 'must be scheme://host[:port], without path, user or wildcard')
    if (exact !== origin) throw badOrigin(i, `must be written as browsers send it: ${exact}`)
  }
}

/** The origin as browsers serialise it: lower case, no default port. Undefined when it has no host. */
function serialized(origin: string): string | undefined {
  if (!URL.canParse(origin)) return undefined
  const { protocol, host } = new URL(origin)
  // A wildcard would look like it worked; `new URL` accepts it as a host.
  if (host === '' || host.includes('*')) return undefined
  return `${protocol}//${host}`
}
