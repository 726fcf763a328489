import type { EgressHost } from '#contracts/egress'

/** The target of a program in a sandbox. It is called over TLS, whatever scheme the program used. */
export interface Target {
  /** In lower case, an IPv6 address in brackets. */
  readonly host: string
  readonly port: number
  /** As it was written. */
  readonly path: string
  /** With its question mark; empty when there is none. */
  readonly query: string
}

const absolute = /^(https?):\/\/([^/?#@\\]+)([^?#]*)(\?[^#]*)?$/i
const printable = /^[\x21-\x7e]*$/

/** Of `http://api.example.com/v1/x?y`. Undefined for an invalid URL, or one with a user. */
export function targetOf(url: string): Target | undefined {
  const [, scheme, authority, path = '', query = ''] = absolute.exec(url) ?? []
  if (scheme === undefined || authority === undefined || !printable.test(url)) return undefined
  const origin = `${scheme}://${authority}`
  if (!URL.canParse(origin)) return undefined
  const { hostname, port } = new URL(origin)
  // The default port is that of TLS, because `http` in the sandbox stands for it.
  const number = port === '' || (port === '80' && scheme.toLowerCase() === 'http') ? 443 : Number(port)
  return { host: hostname.replace(/\.$/, '').toLowerCase(), port: number, path: path || '/', query }
}

/** Of `/runner/worker/{id}/egress/{host}/v1/x?y`: the host is behind so many segments. */
export function targetBelow(url: string, skip: number): Target | undefined {
  const segments = url.split('/')
  const host = segments[skip + 1]
  if (!url.startsWith('/') || host === undefined || segments.length < skip + 3) return undefined
  try {
    return targetOf(`https://${decodeURIComponent(host)}/${segments.slice(skip + 2).join('/')}`)
  } catch {
    return undefined
  }
}

export const authorityOf = ({ host, port }: Pick<Target, 'host' | 'port'>): string =>
  port === 443 ? host : `${host}:${port}`

/** Whether a target is on the host of an entry. A star stands for at least one label. */
export const isOn = ({ host, port }: Target, entry: EgressHost): boolean =>
  port === entry.port && (entry.host.startsWith('*.') ? host.endsWith(entry.host.slice(1)) : host === entry.host)

/** Whether a path matches an entry, however a server reads it. */
export const isWithin = (path: string, { paths }: EgressHost): boolean =>
  paths === undefined || paths.some((prefix) => isBelow(path, prefix))

function isBelow(path: string, prefix: string): boolean {
  if (path === prefix) return true
  const whole = prefix.endsWith('/') ? prefix : `${prefix}/`
  return path.startsWith(whole) && isPlain(path.slice(whole.length))
}

/** No text that only some servers read as an upward step or a slash. */
const isPlain = (rest: string): boolean =>
  !/^\/|\/\/|[\\;]|%(2e|2f|5c|25|00)/i.test(rest) && !rest.split('/').some((one) => one === '.' || one === '..')
