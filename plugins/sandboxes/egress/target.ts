import type { EgressHost } from '#contracts/egress'

/** The target of a program's request. The runner always calls it over TLS, whatever scheme the program used. */
export interface Target {
  /** In lower case, an IPv6 address in brackets. */
  readonly host: string
  readonly port: number
  /** The path exactly as the program wrote it. */
  readonly path: string
  /** The query with its question mark; empty when there is none. */
  readonly query: string
}

const absolute = /^(https?):\/\/([^/?#@\\]+)([^?#]*)(\?[^#]*)?$/i
const printable = /^[\x21-\x7e]*$/

/** The target of an absolute URL such as `http://api.example.com/v1/x?y`. Undefined for an invalid URL, or one with credentials. */
export function targetOf(url: string): Target | undefined {
  const [, scheme, authority, path = '', query = ''] = absolute.exec(url) ?? []
  if (scheme === undefined || authority === undefined || !printable.test(url)) return undefined
  const origin = `${scheme}://${authority}`
  if (!URL.canParse(origin)) return undefined
  const { hostname, port } = new URL(origin)
  // `http` in the sandbox stands for TLS, so the default port is 443.
  const number = port === '' || (port === '80' && scheme.toLowerCase() === 'http') ? 443 : Number(port)
  return { host: hostname.replace(/\.$/, '').toLowerCase(), port: number, path: path || '/', query }
}

/** The target of a path such as `/runner/worker/{id}/egress/{host}/v1/x?y`. The host follows after `skip` segments. */
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

/** Whether a target is on the host of an entry. `*.` stands for at least one label. */
export const isOn = ({ host, port }: Target, entry: EgressHost): boolean =>
  port === entry.port && (entry.host.startsWith('*.') ? host.endsWith(entry.host.slice(1)) : host === entry.host)

/** Whether a path is within the paths of an entry, no matter how a server normalizes it. */
export const isWithin = (path: string, { paths }: EgressHost): boolean =>
  paths === undefined || paths.some((prefix) => isBelow(path, prefix))

function isBelow(path: string, prefix: string): boolean {
  if (path === prefix) return true
  const whole = prefix.endsWith('/') ? prefix : `${prefix}/`
  return path.startsWith(whole) && isPlain(path.slice(whole.length))
}

/** True without any text that some servers read as `..` or as a slash. */
const isPlain = (rest: string): boolean =>
  !/^\/|\/\/|[\\;]|%(2e|2f|5c|25|00)/i.test(rest) && !rest.split('/').some((one) => one === '.' || one === '..')
