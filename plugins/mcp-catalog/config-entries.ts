import { isIP } from 'node:net'
import { type StaticDecode, Type } from '@sinclair/typebox'
import { type TenantList, Tenants } from '#kernel'
import type { AppAccounts } from '#contracts/apps'
import { type HeaderMap, secretsIn } from '#contracts/secrets'
import { hostOf, isNetworkAddress, isPublicAddress, outboundUrl, type Refusal } from '#kit/outbound'
import { type Entry, entryOf } from './entry.ts'
import { entryFields, isEntryName } from './schema.ts'

const Server = Type.Object(
  {
    url: Type.String({
      pattern: '^https?://.+$',
      expects: 'an http or https URL',
      description: 'Where the server is, as sidecars reach it.',
    }),
    ...entryFields,
    headers: Type.Optional(
      Type.Record(Type.String(), Type.String(), {
        description:
          'Sent with every request, e.g. `authorization: Bearer ${GITHUB_TOKEN}`, or with a secret of the tenant of the run: `Bearer secret://github`. An empty header is left out.',
      }),
    ),
    tenants: Tenants('The tenants whose profiles may name it.'),
  },
  { additionalProperties: false },
)
export const ServerTable = Type.Record(Type.String(), Server, {
  default: {},
  description:
    'Entries of the catalog for several tenants, by the name that profiles use: up to 64 letters, digits, hyphens and underscores.',
})
type ServerTable = StaticDecode<typeof ServerTable>

/** The MCP entries of the role file. An entry that the tenant may not use is treated as if it did not exist. */
export interface ConfigEntries {
  find(tenantId: string, name: string): Entry | undefined
  /** The entries that a tenant may use, sorted by name. */
  of(tenantId: string): readonly Entry[]
}

/** The optional services of this role. The boot fails when an entry needs a service that is missing. */
interface Means {
  readonly secrets: boolean
  readonly database: boolean
  readonly accounts: Pick<AppAccounts, 'redirectUrl' | 'missing'> | undefined
}

export function createConfigEntries(table: ServerTable, means: Means): ConfigEntries {
  const listed = new Map<string, { readonly entry: Entry; readonly tenants: TenantList }>()
  for (const [name, { tenants, ...document }] of Object.entries(table)) {
    if (!isEntryName(name)) throw refused(name, ': a name has up to 64 letters, digits, hyphens and underscores')
    checkAddress(name, document.url)
    checkSecrets(name, document.headers, means)
    const entry = entryOf(name, document, true, 'config')
    if (entry.oauth && !(means.secrets && means.database)) {
      throw refused(name, " has 'oauth', which needs a database and the plugin 'secrets'")
    }
    if (entry.oauth?.grant === 'authorization_code' && means.accounts?.redirectUrl === undefined) {
      const why = means.accounts?.missing ?? "To connect accounts, this role needs the plugin 'app-connections'."
      throw refused(name, ` has 'oauth' with authorization_code. ${why}`)
    }
    if (entry.toolPolicy === 'review' && !means.database) {
      throw refused(name, " has 'toolPolicy: review', which needs a database")
    }
    listed.set(name, { entry, tenants })
  }
  const find = (tenantId: string, name: string): Entry | undefined => {
    const found = listed.get(name)
    return found?.tenants.allows(tenantId) ? found.entry : undefined
  }
  return { find, of: (tenantId) => [...listed.keys()].toSorted().flatMap((name) => find(tenantId, name) ?? []) }
}

const refused = (name: string, why: string, cause?: unknown): Error =>
  new Error(`the MCP server '${name}'${why}`, { cause })

function checkSecrets(server: string, headers: HeaderMap = {}, { secrets }: Means): void {
  for (const [header, text] of Object.entries(headers)) {
    if (referredBy(server, header, text).length === 0 || secrets) continue
    throw refused(server, `: its header '${header}' refers to a secret, but this role has no plugin 'secrets'; add it`)
  }
}

function referredBy(server: string, header: string, text: string): readonly string[] {
  try {
    return secretsIn(text)
  } catch (cause) {
    throw refused(server, `: in its header '${header}', secret:// has no name of a secret behind it`, cause)
  }
}

/** A server of the role file may be private, but a private one must name its port. Addresses where clouds keep their credentials are refused. */
function checkAddress(name: string, text: string): void {
  const url = outboundUrl(text, { permits: isNetworkAddress, schemes: ['http', 'https'] })
  if (typeof url === 'string') throw refused(name, `: ${refusals[url]}`)
  const host = hostOf(url)
  const own = host === 'localhost' || (isIP(host) !== 0 && !isPublicAddress(host))
  if (own && !/:\d+$/.test(authorityOf(text))) {
    throw refused(name, ` has a private address: write its port, too, as in http://${url.hostname}:80`)
  }
}

const authorityOf = (url: string): string => /^\w+:\/\/([^/?#]*)/.exec(url)?.[1] ?? ''

const refusals: Readonly<Record<Refusal, string>> = {
  not_a_url: 'its address is not a URL',
  scheme: 'its address is not an http or https URL',
  credentials: 'its address carries credentials; send them as headers',
  address: 'its address is link-local, or that of the metadata service of a cloud',
  host: 'its host is not asked',
}
