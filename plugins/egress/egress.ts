import type { TenantList } from '#kernel'
import type { Egress, EgressEntry, EgressHost } from '#contracts/egress'
import { secretErrors, type Secrets } from '#contracts/secrets'
import { isNetworkAddress, isPublicAddress, outboundUrl, type Refusal } from '#kit/outbound'
import { isOwnHost, type OwnHost } from '#kit/own-hosts'
import { checkHeaders, checkNumbers, checkPaths, placeOf, secretsOf, urlOf } from './entries.ts'
import { invalidEgress, missingSecret, needsSandbox, notForTenant, tooLong, tooManySecrets } from './errors.ts'

/** Of a profile: all of their values travel with each attempt. */
const mostSecrets = 50
/** Of a value in a header; servers take no more. */
const mostBytes = 16 * 1024

/** What the role file allows. */
export interface Allowed {
  readonly tenants: TenantList
  /** Public hosts, `example.com` or `.example.com`; any when empty. */
  readonly hosts: readonly string[]
  readonly ownHosts: readonly OwnHost[]
}

export function createEgress({ tenants, hosts, ownHosts }: Allowed, secrets: Secrets | undefined): Egress {
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

/** The values that the headers of a host refer to, by name; one that no header may have is refused as for any other header. */
async function valuesOf(secrets: Secrets | undefined, tenantId: string, { host, headers }: EgressHost) {
  const names = secretsOf(headers)
  if (names.length === 0) return {}
  if (!secrets) throw secretErrors.secretsUnavailable()
  const references = Object.fromEntries(names.map((name) => [name, `secret://${name}`]))
  const values = await secrets.headers(tenantId, references, `egress/${host}`)
  const long = names.find((name) => values[name]!.length > mostBytes)
  if (long !== undefined) throw tooLong(long, mostBytes)
  return values
}

const refusals: Readonly<Record<Refusal, string>> = {
  not_a_url: 'is no host name or address',
  scheme: 'is no host name or address',
  credentials: 'is no host name or address',
  address:
    'is private, or that of the metadata service of a cloud; the operator names hosts of your own network in ownHosts of the plugin egress',
  host: 'is none of those that this installation lets sandboxes reach; the operator names them in hosts of the plugin egress',
}
