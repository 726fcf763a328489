import { Type } from '@sinclair/typebox'
import { definePlugin, Duration, maybe, Settings, Tenants } from '#kernel'
import { appErrors, isToolkitName, ToolkitProviders } from '#contracts/apps'
import { secretOf, Secrets } from '#contracts/secrets'
import { ComposioClient } from './client.ts'
import { ComposioProvider } from './provider.ts'

const text = (description: string) => Type.Optional(Type.String({ description }))

const Toolkit = Type.Object(
  {
    authConfig: text('The auth config of the project at Composio, ac_…; the first that is enabled by default.'),
    connection: Type.Union([Type.Literal('tenant'), Type.Literal('user')], {
      default: 'user',
      description: 'Whose account it uses: one for each end user, or one for the tenant.',
    }),
    description: text('The description for models and people.'),
    version: text('The version of its tools, such as 20250905_00; by default that of Composio.'),
    tools: Type.Optional(
      Type.Array(Type.String(), { description: 'The only tools that may be used; all by default.' }),
    ),
    tenants: Tenants('The tenants that may use it.'),
  },
  { additionalProperties: false },
)

/** Offers toolkits of Composio, which keeps the accounts of end users and calls the apps. */
export default definePlugin({
  name: 'apps-composio',
  config: Settings({
    apiKey: text(
      'COMPOSIO_API_KEY: the key of a project at Composio, or `secret://<name>` if each tenant has its own project. Without it there are no such toolkits.',
    ),
    baseUrl: text('The URL of your own Composio.'),
    toolkits: Type.Record(Type.String(), Toolkit, {
      default: {},
      description: 'Active toolkits, by their slug at Composio, e.g. gmail.',
    }),
    toolsFor: Duration('10m', 'How long a list of tools is kept.'),
  }),
  errors: appErrors,
  requires: { secrets: maybe(Secrets) },
  provides: { providers: ToolkitProviders },
  async setup({ config, deps: { secrets }, onStop }) {
    const { apiKey, baseUrl, toolkits, toolsFor: keepMs } = config
    const listed = new Map(Object.entries(toolkits))
    for (const name of listed.keys()) {
      if (!isToolkitName(name)) throw new Error(`apps-composio: no toolkit can be called '${name}'`)
    }
    if (!apiKey) {
      if (listed.size > 0) throw new Error('apps-composio has toolkits, which need an apiKey: set COMPOSIO_API_KEY')
      return { providers: {} }
    }
    if (apiKey.startsWith('secret://')) {
      if (secretOf(apiKey) === undefined)
        throw new Error('apps-composio: apiKey does not refer to a valid name of a secret')
      if (!secrets) throw new Error("apps-composio: apiKey refers to a secret, and this role has no plugin 'secrets'")
    }
    const client = new ComposioClient(baseUrl || undefined)
    onStop(() => client.close())
    return { providers: { composio: new ComposioProvider({ client, apiKey, secrets, toolkits: listed, keepMs }) } }
  },
})
