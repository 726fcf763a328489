import { type Static, Type } from '@sinclair/typebox'
import { access, type App, definePlugin, errorTable, failures } from '#kernel'
import { ApiGuard } from '#contracts/auth'

const absentErrors = errorTable('absent', {
  notConfigured: {
    status: 503,
    about: "The conductor's role file leaves this capability out; the sentence names the missing plugin.",
  },
})

type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'
/** `GET /api/secrets`. */
type Route = `${Method} ${string}`

interface Capability {
  /** The plugin that has it. */
  readonly plugin: string
  /** What a reader is told where there is nothing: the answer without any. */
  readonly empty?: Readonly<Record<`GET ${string}`, readonly never[] | Readonly<Record<string, unknown>>>>
  /** All others: 503. */
  readonly refused: readonly Route[]
}

/** What the specification has a conductor answer without each capability; the paths are those of its plugin. */
const capabilities: readonly Capability[] = [
  {
    plugin: 'secrets',
    refused: ['GET /api/secrets', 'POST /api/secrets', 'PUT /api/secrets/:name', 'DELETE /api/secrets/:name'],
  },
  {
    plugin: 'storage',
    empty: { 'GET /api/storage': { configured: false } },
    refused: [
      'GET /api/storage/objects',
      'GET /api/storage/objects/*',
      'PUT /api/storage/objects/*',
      'DELETE /api/storage/objects/*',
    ],
  },
  {
    plugin: 'skills',
    empty: { 'GET /api/skills': [] },
    refused: [
      'POST /api/skills',
      'GET /api/skills/:name',
      'DELETE /api/skills/:name',
      'POST /api/skills/import',
      'POST /api/skills/import/:stagingId/commit',
    ],
  },
  {
    plugin: 'mcp-catalog',
    empty: { 'GET /api/mcp/catalog': [] },
    refused: [
      'POST /api/mcp/catalog',
      'GET /api/mcp/catalog/:name',
      'PUT /api/mcp/catalog/:name',
      'DELETE /api/mcp/catalog/:name',
    ],
  },
  {
    plugin: 'apps',
    empty: { 'GET /api/apps': [] },
    refused: ['GET /api/apps/:toolkit/tools', 'POST /api/apps/:toolkit/call'],
  },
  {
    plugin: 'memory',
    refused: [
      'GET /api/memory',
      'GET /api/memory/stats',
      'GET /api/profiles/:name/memories',
      'POST /api/profiles/:name/memories',
      'GET /api/profiles/:name/memories/search',
      'GET /api/profiles/:name/memories/:id',
      'GET /api/profiles/:name/memories/:id/history',
      'DELETE /api/profiles/:name/memories/:id',
    ],
  },
  {
    plugin: 'workflows',
    empty: {
      'GET /api/workflows/runs': [],
      'GET /api/workflows/definitions': [],
      'GET /api/workflows/schedules': [],
    },
    refused: [
      'POST /api/workflows/runs',
      'GET /api/workflows/runs/:id',
      'POST /api/workflows/runs/:id/start',
      'POST /api/workflows/runs/:id/cancel',
      'POST /api/workflows/runs/:id/repair',
      'PATCH /api/workflows/runs/:id/nodes/:nodeId',
      'GET /api/workflows/runs/:id/stream',
      'POST /api/workflows/definitions',
      'GET /api/workflows/definitions/:id',
      'PATCH /api/workflows/definitions/:id',
      'DELETE /api/workflows/definitions/:id',
      'POST /api/workflows/schedules',
      'GET /api/workflows/schedules/:id',
      'DELETE /api/workflows/schedules/:id',
      'POST /api/workflows/schedules/:id/pause',
      'POST /api/workflows/schedules/:id/resume',
    ],
  },
  { plugin: 'billing', refused: ['GET /api/billing/wallet', 'POST /api/billing/checkout'] },
]

/**
 * What a client hears of capabilities that a role file leaves out: nothing where there is a list of them, 503 `not_configured` else,
 * so that a client can tell what is not installed from what is not there. It comes last in a role file: what is there by then stays.
 */
export default definePlugin({
  name: 'absent',
  errors: absentErrors,
  requires: { guard: ApiGuard },
  async setup({ deps: { guard }, routes }) {
    routes('conductor', async (app) => {
      guard.protect(app)
      for (const capability of capabilities) if (!isThere(app, capability)) standIn(app, capability)
    })
    return {}
  },
})

const isThere = (app: App, { empty = {}, refused }: Capability): boolean =>
  [...Object.keys(empty), ...refused].some((route) => {
    const [method, url] = route.split(' ') as [Method, string]
    return app.hasRoute({ method, url })
  })

const Elsewhere = Type.Unknown({ description: 'Only where the plugin is there; see its own documentation.' })
const Nothing = Type.Union([Type.Array(Type.Never()), Type.Object({ configured: Type.Literal(false) })])

function standIn(app: App, { plugin, empty = {}, refused }: Capability): void {
  const refusal = { message: `The plugin '${plugin}' is not in the role file of this conductor.` }
  const about = (route: string) => {
    const [method, url] = route.split(' ') as [Method, string]
    const params = [...url.matchAll(/:(\w+)|(\*)/g)].map(([, name = '*']) => [name, Type.String()])
    const schema = { tags: [plugin], summary: `Not installed: ${plugin}` }
    return {
      method,
      url,
      schema: params.length > 0 ? { ...schema, params: Type.Object(Object.fromEntries(params)) } : schema,
    }
  }
  for (const [route, answer] of Object.entries(empty)) {
    const { method, url, schema } = about(route)
    const handler = async (): Promise<Static<typeof Nothing>> => answer as Static<typeof Nothing>
    app.route({ method, url, ...access('member'), schema: { ...schema, response: { 200: Nothing } }, handler })
  }
  for (const route of refused) {
    const { method, url, schema } = about(route)
    const response = { 200: Elsewhere, ...failures(absentErrors.notConfigured) }
    const handler = async (): Promise<never> => {
      throw absentErrors.notConfigured(refusal)
    }
    app.route({
      method,
      url,
      ...access(method === 'GET' ? 'member' : 'admin'),
      schema: { ...schema, response },
      handler,
    })
  }
}
