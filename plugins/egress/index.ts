import { Type } from '@sinclair/typebox'
import { definePlugin, maybe, Settings, type TenantList, Tenants } from '#kernel'
import {
  connectionHeaders,
  Egress,
  type EgressEntry,
  egressErrors,
  type EgressHost,
  longestSecret,
  mostSecretsOfHost,
  shortestSecret,
} from '#contracts/egress'
import { type HeaderMap, secretErrors, Secrets, secretsIn } from '#contracts/secrets'
import { isOwnHost, type OwnHost, OwnHosts } from '#kit/own-hosts'
import { isNetworkAddress, isPublicAddress, outboundUrl, type Refusal } from '#kit/outbound'

/** Which hosts a profile may let its sandbox reach through the runner, and which headers the runner adds to the requests. ADR 59. */
export default definePlugin({
  name: 'egress',
  config: Settings({
    tenants: Tenants('The tenants whose profiles may have `egress`.', ['*']),
    hosts: Type.Array(
      Type.String({
        pattern: '^(\\.?[A-Za-z0-9_-][A-Za-z0-9._-]*(,\\s*\\.?[A-Za-z0-9_-][A-Za-z0-9._-]*)*)?$',
        expects: 'host names with commas between; .example.com for a domain and all below it',
      }),
      { default: [], description: 'The public hosts that profiles may name; any when empty.' },
    ),
    ownHosts: OwnHosts(
      'Your own hosts that may be private, each with its tenants: `gitea.internal:3000=acme|globex, .corp.example:443=*`. They are called over TLS as well.',
    ),
  }),
  errors: [egressErrors, secretErrors],
  requires: { secrets: maybe(Secrets) },
  provides: { egress: Egress },
  setup: async ({ config: { tenants, hosts, ownHosts }, deps: { secrets } }) => {
    const named = hosts.flatMap((text) => text.split(',')).map((host) => host.trim())
    return { egress: createEgress({ tenants, hosts: named.filter((host) => host !== ''), ownHosts }, secrets) }
  },
})

/** The most secrets of one profile: all their values are sent with each attempt of a run. */
const mostSecrets = 50

/** The hosts and tenants that the role file allows. */
interface Allowed {
  readonly tenants: TenantList
  /** Public hosts as `example.com` or `.example.com`; empty allows any public host. */
  readonly hosts: readonly string[]
  readonly ownHosts: readonly OwnHost[]
}

function createEgress({ tenants, hosts, ownHosts }: Allowed, secrets: Secrets | undefined): Egress {
  /** The host of an entry as runners get it, or why the tenant may not have it. */
  const judge = (tenantId: string, entry: EgressEntry): EgressHost | Refusal => {
    const { host: _, ...rest } = entry
    const place = placeOf(entry)
    const url = urlOf(place)
    const own = isOwnHost(ownHosts, tenantId, new URL(url))
    const bounds = own ? { permits: isNetworkAddress } : { permits: isPublicAddress, hosts }
    const asked = outboundUrl(url, { ...bounds, schemes: ['https'] })
    return typeof asked === 'string' ? asked : { ...rest, ...place, own }
  }
  return {
    async check(tenantId, { egress = [], workerMode }) {
      if (egress.length === 0) return
      if (workerMode !== 'sandbox') throw needsSandbox()
      if (!tenants.allows(tenantId)) throw notForTenant()
      for (const entry of egress) {
        const judged = judge(tenantId, entry)
        if (typeof judged === 'string') throw invalidEgress(entry.host, refusals[judged])
        checkPaths(entry)
        checkHeaders(entry)
      }
      checkNumbers(egress)
      const wanted = new Map(egress.flatMap(({ host, headers }) => secretsOf(headers).map((name) => [name, host])))
      if (wanted.size === 0) return
      if (wanted.size > mostSecrets) throw tooManySecrets(mostSecrets)
      if (!secrets) throw secretErrors.secretsUnavailable()
      const [unknown] = await secrets.unknown(tenantId, [...wanted.keys()])
      if (unknown !== undefined) throw missingSecret(unknown, wanted.get(unknown)!)
    },
    async resolve(tenantId, entries) {
      const allowed = tenants.allows(tenantId) ? entries : []
      const judged = allowed.map((entry) => judge(tenantId, entry))
      const found = judged.filter((one): one is EgressHost => typeof one !== 'string')
      const values = await Promise.all(found.map((host) => valuesOf(secrets, tenantId, host)))
      return { hosts: found, secrets: Object.fromEntries(values.flatMap((one) => Object.entries(one))) }
    },
  }
}

/**
 * The values of the secrets in a host's headers, by name. Rejects a value that no header may hold, a too long one, and one that is too short to be
 * masked reliably in answers.
 */
async function valuesOf(secrets: Secrets | undefined, tenantId: string, { host, headers }: EgressHost) {
  const names = secretsOf(headers)
  if (names.length === 0) return {}
  if (!secrets) throw secretErrors.secretsUnavailable()
  const references = Object.fromEntries(names.map((name) => [name, `secret://${name}`]))
  const values = await secrets.headers(tenantId, references, `egress/${host}`)
  const long = names.find((name) => values[name]!.length > longestSecret)
  if (long !== undefined) throw tooLong(long, longestSecret)
  const short = names.find((name) => values[name]!.length < shortestSecret)
  if (short !== undefined) throw tooShort(short, shortestSecret)
  return values
}

const refusals: Readonly<Record<Refusal, string>> = {
  not_a_url: 'is no host name or address',
  scheme: 'is no host name or address',
  credentials: 'is no host name or address',
  address:
    'is private, or that of the metadata service of a cloud; the operator names hosts of your own network in ownHosts of the plugin egress',
  host: 'is not one of the hosts that this installation allows for sandboxes; the operator lists them in hosts of the plugin egress',
}

/** The host and port of requests, which always use TLS. */
type Place = Pick<EgressHost, 'host' | 'port'>

/** The host and port of an entry. AppError 400 `invalid_egress` for text that URL parsing would change into another host. */
function placeOf({ host: text }: EgressEntry): Place {
  const [, host = '', port = '443'] = /^(\[.*\]|[^:]*)(?::(\d+))?$/.exec(text) ?? []
  const plain = host.toLowerCase().replace(/^\*\./, '')
  if (Number(port) < 1 || Number(port) > 65_535) throw invalidEgress(text, 'has no port between 1 and 65535')
  // WHATWG parsing turns 0x7f.1 and 2130706433 into IP addresses. An entry must show the address that is really requested.
  const name = URL.canParse(`https://${plain}`) ? new URL(`https://${plain}`).hostname : undefined
  if (name !== plain) throw invalidEgress(text, `is no host name or address${name ? `; write ${name}` : ''}`)
  if (host.startsWith('*.') && !plain.includes('.'))
    throw invalidEgress(text, 'stands for too much: name two labels behind the star, as in *.example.com')
  return { host: host.toLowerCase(), port: Number(port) }
}

/** The URL by which an entry is judged. For `*.example.com` it is a host below the domain, because the domain itself is not included. */
const urlOf = ({ host, port }: Place): string => `https://${host.replace(/^\*/, 'any')}:${port}/`

/** Headers of the connection, and headers that the runner writes itself. An entry may not set them. */
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
function checkHeaders({ host, headers = {} }: EgressEntry): void {
  const names = Object.keys(headers).map((name) => name.toLowerCase())
  if (host.startsWith('*.') && names.length > 0) {
    throw invalidEgress(
      host,
      "stands for hosts that may be anybody's, so it takes no headers; name each host that gets them",
    )
  }
  for (const [name, text] of Object.entries(headers)) {
    const plain = name.toLowerCase()
    if (!headerName.test(name)) throw invalidEgress(host, 'has a header with an invalid name')
    if (notHeaders.has(plain))
      throw invalidEgress(host, `may not set the header ${plain}, which is about the connection`)
    if (names.filter((one) => one === plain).length > 1) throw invalidEgress(host, `has the header ${plain} twice`)
    if (!headerText.test(text)) throw invalidEgress(host, `has a header ${plain} with what headers cannot hold`)
  }
  if (secretsOf(headers).length > mostSecretsOfHost)
    throw invalidEgress(host, `refers to more than ${mostSecretsOfHost} secrets`)
}

/** AppError 400 `invalid_egress` when the entries of one host refer to too many secrets together. */
function checkNumbers(entries: readonly EgressEntry[]): void {
  for (const together of Map.groupBy(entries, (entry) => urlOf(placeOf(entry))).values()) {
    const names = new Set(together.flatMap(({ headers }) => secretsOf(headers)))
    if (names.size > mostSecretsOfHost)
      throw invalidEgress(together[0]!.host, `refers to more than ${mostSecretsOfHost} secrets`)
  }
}

/** The distinct names of the secrets that headers refer to. */
const secretsOf = (headers: HeaderMap = {}): readonly string[] => [
  ...new Set(Object.values(headers).flatMap(secretsIn)),
]

const dots = /(^|\/)\.{1,2}(\/|$)/

/** AppError 400 `invalid_egress` for paths that servers may read in more than one way. */
function checkPaths({ host, paths = [] }: EgressEntry): void {
  const strange = paths.find((path) => dots.test(path) || /%2e|%25|%5c|%00|;/i.test(path) || path.includes('//'))
  if (strange !== undefined)
    throw invalidEgress(host, `has the path ${strange}, which servers may read in more than one way`)
}

/** The error for a host that may not stand in a profile. `why` is the rest of the sentence after the host. */
const invalidEgress = (host: string, why: string) =>
  egressErrors.invalidEgress({ message: `The host '${host}' of egress ${why}.` })
const needsSandbox = () =>
  egressErrors.invalidEgress({
    message: 'Only sandboxes have egress: give the profile workerMode: sandbox, or leave egress out.',
  })
const notForTenant = () =>
  egressErrors.invalidEgress({
    message: 'Sandboxes of this tenant may reach no hosts; the operator says who may, by tenants of the plugin egress.',
  })
const missingSecret = (name: string, host: string) =>
  secretErrors.unknownSecret({
    name,
    message: `The host '${host}' of egress is sent the secret '${name}', which this tenant does not have; create it with POST /api/secrets.`,
  })
const tooManySecrets = (most: number) =>
  egressErrors.invalidEgress({ message: `The hosts of egress refer to more than ${most} secrets.` })
const tooLong = (name: string, most: number) =>
  secretErrors.secretUnfit({
    message: `The value of the secret '${name}' cannot be part of a header for a host of egress: it has more than ${most} bytes.`,
  })
const tooShort = (name: string, least: number) =>
  secretErrors.secretUnfit({
    message: `The value of the secret '${name}' has less than ${least} characters, so it could not be found where a host repeats it: write values that are not secret into the header itself, and give hosts longer credentials.`,
  })
