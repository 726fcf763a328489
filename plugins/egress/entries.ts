import { connectionHeaders, type EgressEntry, type EgressHost } from '#contracts/egress'
import { type HeaderMap, secretsIn } from '#contracts/secrets'
import { invalidEgress } from './errors.ts'

/** A host as it is asked, over TLS in any case. */
export type Place = Pick<EgressHost, 'host' | 'port'>

/** The host and port of an entry. AppError 400 `invalid_egress` for text that would be asked under another name than it has. */
export function placeOf({ host: text }: EgressEntry): Place {
  const [, host = '', port = '443'] = /^(\[.*\]|[^:]*)(?::(\d+))?$/.exec(text) ?? []
  const plain = host.toLowerCase().replace(/^\*\./, '')
  if (Number(port) < 1 || Number(port) > 65_535) throw invalidEgress(text, 'has no port between 1 and 65535')
  // WHATWG parsing turns 0x7f.1 and 2130706433 into addresses: an entry says what it is.
  const name = URL.canParse(`https://${plain}`) ? new URL(`https://${plain}`).hostname : undefined
  if (name !== plain) throw invalidEgress(text, `is no host name or address${name ? `; write ${name}` : ''}`)
  if (host.startsWith('*.') && !plain.includes('.'))
    throw invalidEgress(text, 'stands for too much: name two labels behind the star, as in *.example.com')
  return { host: host.toLowerCase(), port: Number(port) }
}

/** The address by which a place is judged; for many hosts one of those below the domain, which itself is not meant. */
export const urlOf = ({ host, port }: Place): string => `https://${host.replace(/^\*/, 'any')}:${port}/`

/** What the connection is about, and what the runner itself writes. */
const notHeaders: ReadonlySet<string> = new Set([
  ...connectionHeaders,
  'accept-encoding',
  'content-length',
  'expect',
  'host',
  'http2-settings',
])
const headerName = /^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$/
const headerText = /^[\t\x20-\x7e]*$/

/** AppError 400 `invalid_egress` for headers that cannot be sent, 400 `invalid_ref` for a reference without a name. */
export function checkHeaders({ host, headers = {} }: EgressEntry): void {
  const names = Object.keys(headers).map((name) => name.toLowerCase())
  if (host.startsWith('*.') && names.length > 0) {
    throw invalidEgress(
      host,
      "stands for hosts that may be anybody's, so it takes no headers; name each host that gets them",
    )
  }
  for (const [name, text] of Object.entries(headers)) {
    const plain = name.toLowerCase()
    if (!headerName.test(name)) throw invalidEgress(host, 'has a header whose name is none')
    if (notHeaders.has(plain))
      throw invalidEgress(host, `may not set the header ${plain}, which is about the connection`)
    if (names.filter((one) => one === plain).length > 1) throw invalidEgress(host, `has the header ${plain} twice`)
    if (!headerText.test(text)) throw invalidEgress(host, `has a header ${plain} with what headers cannot hold`)
  }
  if (secretsOf(headers).length > secretsOfHost)
    throw invalidEgress(host, `refers to more than ${secretsOfHost} secrets`)
}

/** Each is looked for in all that the host answers. */
const secretsOfHost = 8

/** AppError 400 `invalid_egress` when the entries of one host refer to too many secrets together. */
export function checkNumbers(entries: readonly EgressEntry[]): void {
  for (const together of Map.groupBy(entries, (entry) => urlOf(placeOf(entry))).values()) {
    const names = new Set(together.flatMap(({ headers }) => secretsOf(headers)))
    if (names.size > secretsOfHost)
      throw invalidEgress(together[0]!.host, `refers to more than ${secretsOfHost} secrets`)
  }
}

/** The names of the secrets that headers refer to, each once. */
export const secretsOf = (headers: HeaderMap = {}): readonly string[] => [
  ...new Set(Object.values(headers).flatMap(secretsIn)),
]

const dots = /(^|\/)\.{1,2}(\/|$)/

/** AppError 400 `invalid_egress` for paths that lead elsewhere than they read. */
export function checkPaths({ host, paths = [] }: EgressEntry): void {
  const strange = paths.find((path) => dots.test(path) || /%2e|%25|%5c|%00|;/i.test(path) || path.includes('//'))
  if (strange !== undefined)
    throw invalidEgress(host, `has the path ${strange}, which servers may read in more than one way`)
}
