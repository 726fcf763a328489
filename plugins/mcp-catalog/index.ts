import { isIP } from 'node:net'
import { type StaticDecode, Type } from '@sinclair/typebox'
import { definePlugin, maybe, Settings, type TenantList, Tenants } from '#kernel'
import { type McpServer, McpServers } from '#contracts/mcp-servers'
import { type HeaderMap, secretErrors, Secrets, secretsIn } from '#contracts/secrets'
import { hostOf, isNetworkAddress, isPublicAddress, outboundUrl, type Refusal } from '#kit/outbound'

const Server = Type.Object(
  {
    url: Type.String({
      pattern: '^https?://.+$',
      expects: 'an http or https URL',
      description: 'Where the server speaks streamable HTTP, as sidecars reach it.',
    }),
    headers: Type.Optional(
      Type.Record(Type.String(), Type.String(), {
        description:
          'Sent with every request, e.g. `authorization: Bearer ${GITHUB_TOKEN}`, or with a secret of the tenant whose run it is: `Bearer secret://github`. One that comes out empty is left out.',
      }),
    ),
    tenants: Tenants('The tenants whose profiles may name it.'),
  },
  { additionalProperties: false },
)

const ServerTable = Type.Record(Type.String(), Server, {
  default: {},
  description: 'Servers by the name that profiles give them: up to 64 letters, digits, hyphens and underscores.',
})
type ServerTable = StaticDecode<typeof ServerTable>

/** The external MCP servers that profiles may name, from the table in the role file. To a tenant that may not use one it does not exist. */
export default definePlugin({
  name: 'mcp-servers',
  config: Settings({ servers: ServerTable }),
  errors: secretErrors,
  requires: { secrets: maybe(Secrets) },
  provides: { servers: McpServers },
  setup: async ({ config, deps }) => ({ servers: createServers(config.servers, deps.secrets) }),
})

/** A server's name becomes part of its tools' names, which model servers accept in these characters. */
const nameForm = /^[A-Za-z0-9_-]{1,64}$/

interface Listed {
  readonly server: McpServer
  readonly tenants: TenantList
  /** The secrets that its headers refer to. */
  readonly secrets: readonly string[]
}

function createServers(table: ServerTable, secrets: Secrets | undefined): McpServers {
  const servers = new Map<string, Listed>()
  for (const [name, { url, headers, tenants }] of Object.entries(table)) {
    if (!nameForm.test(name)) {
      throw new Error(`the MCP server '${name}': a name has up to 64 letters, digits, hyphens and underscores`)
    }
    checkAddress(name, url)
    const server = { name, url, ...(headers ? { headers } : {}) }
    servers.set(name, { server, tenants, secrets: checkSecrets(name, headers, secrets) })
  }
  const find = (tenantId: string, name: string): Listed | undefined => {
    const found = servers.get(name)
    return found?.tenants.allows(tenantId) ? found : undefined
  }
  const ready = async (tenantId: string, { server, secrets: referred }: Listed): Promise<McpServer> => {
    const { name, headers = {} } = server
    if (!secrets || referred.length === 0) return server
    return { ...server, headers: await secrets.headers(tenantId, headers, `mcp-servers/${name}`) }
  }
  return {
    unknown: async (tenantId, names) => names.filter((name) => !find(tenantId, name)),
    names: async (tenantId) => [...servers.keys()].filter((name) => find(tenantId, name)).toSorted(),
    async unknownSecrets(tenantId, names) {
      const referred = names.flatMap((name) => find(tenantId, name)?.secrets ?? [])
      return secrets && referred.length > 0 ? secrets.unknown(tenantId, [...new Set(referred)]) : []
    },
    resolve: (tenantId, names) =>
      Promise.all(names.flatMap((name) => find(tenantId, name) ?? []).map((found) => ready(tenantId, found))),
  }
}

/** The secrets that headers refer to, as far as this role can resolve them at all. */
function checkSecrets(server: string, headers: HeaderMap = {}, secrets: Secrets | undefined): readonly string[] {
  return Object.entries(headers).flatMap(([header, text]) => {
    const names = secretsOf(server, header, text)
    if (names.length === 0 || secrets) return names
    throw new Error(
      `the MCP server '${server}': its header '${header}' refers to a secret, but this role has no plugin 'secrets'; add it`,
    )
  })
}

function secretsOf(server: string, header: string, text: string): readonly string[] {
  try {
    return secretsIn(text)
  } catch (cause) {
    throw new Error(
      `the MCP server '${server}': in its header '${header}', secret:// has no name of a secret behind it`,
      {
        cause,
      },
    )
  }
}

/** A server may be private: the role file names it. Not where clouds keep their credentials, and a private one names its port. */
function checkAddress(name: string, text: string): void {
  const url = outboundUrl(text, { permits: isNetworkAddress, schemes: ['http', 'https'] })
  if (typeof url === 'string') throw new Error(`the MCP server '${name}': ${refusals[url]}`)
  const host = hostOf(url)
  const own = host === 'localhost' || (isIP(host) !== 0 && !isPublicAddress(host))
  if (own && !/:\d+$/.test(authorityOf(text))) {
    throw new Error(
      `the MCP server '${name}' has a private address: write its port, too, as in http://${url.hostname}:80`,
    )
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
