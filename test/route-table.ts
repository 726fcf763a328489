import assert from 'node:assert/strict'
import type { FastifyInstance } from 'fastify'

// The routes of a booted role, as its own `/openapi.json` shows them: tests that go through this table need no word about a new route.

export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'

export interface Route {
  readonly method: Method
  /** As documented: `/api/profiles/{name}`. */
  readonly path: string
  /** What the route declared; undefined for a public one. */
  readonly access: string | undefined
  /** True when it takes a JSON body. */
  readonly json: boolean
}

interface Operation {
  readonly 'x-access'?: string
  readonly requestBody?: { readonly content: Readonly<Record<string, unknown>> }
}
interface Document {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>
}

export const nameOf = ({ method, path }: Pick<Route, 'method' | 'path'>): string => `${method} ${path}`
export const isWrite = ({ method }: Route): boolean => method !== 'GET'

export async function routesOf(app: FastifyInstance): Promise<Route[]> {
  const document = (await app.inject('/openapi.json')).json<Document>()
  const routes = Object.entries(document.paths).flatMap(([path, operations]) =>
    Object.entries(operations)
      .filter(([method]) => !['head', 'options'].includes(method))
      .map(([method, operation]) => ({
        method: method.toUpperCase() as Method,
        path,
        access: operation['x-access'],
        json: operation.requestBody?.content['application/json'] !== undefined,
      })),
  )
  // A route that the document hides would not be tested.
  const documented = new Set(routes.map(nameOf))
  const hidden = served(app).filter((name) => !documented.has(name) && name !== 'GET /openapi.json')
  assert.deepEqual(hidden, [], 'every route is in the OpenAPI document')
  const unknown = [...new Set(routes.flatMap(({ path }) => resourcesOf(path)))].filter((id) => !(id in unknownIds))
  assert.deepEqual(
    unknown,
    [],
    'every parameter of a path has a value among unknownIds in test/route-table.ts: add these',
  )
  return routes
}

/** The router's own tree, where each line continues the text of the line that it hangs under. */
function served(app: FastifyInstance): string[] {
  const names: string[] = []
  const stems: string[] = []
  for (const line of app.printRoutes({ commonPrefix: false }).split('\n')) {
    const found = /^((?:│ {3}| {4})*)[├└]── (.*?)(?: \(([A-Z, ]+)\))?$/.exec(line)
    if (!found) continue
    const depth = found[1]!.length / 4
    // The router does not show where a wildcard is that hangs under no route, which is that of the VirtualFS.
    if (depth === 0 && found[2]!.startsWith('*')) continue
    // What is behind a wildcard is shown without its slash.
    const path = `${stems[depth - 1] ?? ''}${found[2]!.startsWith('*') ? '/' : ''}${found[2]!}`
    stems.splice(depth, stems.length, path)
    for (const method of found[3]?.split(', ') ?? []) {
      if (['HEAD', 'OPTIONS'].includes(method)) continue
      names.push(`${method} ${path.replaceAll(/:(\w+)/g, '{$1}').replaceAll('*', '{*}')}`)
    }
  }
  return names
}

/** Ids by the path they end, e.g. `/api/profiles/{name}`. */
export type Fixtures = Readonly<Record<string, string>>

/** The paths that end in a parameter, within a path. */
const resourcesOf = (path: string): string[] =>
  [...path.matchAll(/\{[^}]+\}/g)].map(({ 0: param, index }) => path.slice(0, index) + param)

/** Ids that nothing has. A new resource adds one here; the tests of the whole route table say so when it is missing. */
export const unknownIds: Fixtures = {
  '/api/api-keys/{id}': 'tak_0000',
  '/api/apps/{toolkit}': 'nobody',
  '/api/apps/{toolkit}/connections/{id}': 'conn_0000',
  '/api/billing/checkouts/{tenantId}': 'nobody',
  '/api/billing/checkouts/{tenantId}/{id}': 'chk_0000',
  '/api/billing/events/{provider}': 'nobody',
  '/api/billing/statements/{month}': '2020-01',
  '/api/end-users/{id}': 'nobody',
  '/api/mcp/catalog/{name}': 'nobody',
  '/mcp/catalog/{name}': 'nobody',
  '/api/pools/{id}': 'pool_0000',
  '/api/profiles/{name}': 'nobody',
  '/api/profiles/{name}/keys/{keyId}': 'key_0000',
  '/api/profiles/{name}/memories/{id}': 'mem_0000',
  '/api/profiles/{name}/versions/{version}': '1',
  '/api/runs/{id}': 'run_0000',
  '/api/runs/{id}/objects/{sha256}': '0'.repeat(64),
  '/api/sandbox-events/{provider}': 'nobody',
  '/api/secrets/{name}': 'nobody',
  '/api/secrets/{name}/versions/{version}': '1',
  '/api/sessions/{id}': 'sess-00000000-00000000',
  '/api/skills/import/{stagingId}': 'stg_0000',
  '/api/skills/{name}': 'nobody',
  '/api/storage/objects/{*}': 'no/such/object',
  '/api/tenants/{id}': 'nobody',
  '/api/vfs/{*}': 'files/objects/no/such/object',
  '/api/approvals/{id}': 'appr_0000',
  '/api/webhooks/deliveries/{id}': 'whd_0000',
  '/api/workflows/definitions/{id}': 'wfdef_0000',
  '/api/workflows/runs/{id}': 'wfrun_0000',
  '/api/workflows/runs/{id}/nodes/{nodeId}': 'nobody',
  '/api/workflows/runs/{id}/signals/{name}': 'nobody',
  '/api/workflows/schedules/{id}': 'wfsch_0000',
}

/** The URL of a route with its parameters filled in. */
export function urlOf({ path }: Pick<Route, 'path'>, fixtures: Fixtures = unknownIds): string {
  return path.replaceAll(/\{[^}]+\}/g, (param, at: number) => {
    const value = fixtures[path.slice(0, at) + param]
    assert.ok(value !== undefined, `${path}: no value for ${param}`)
    return value
  })
}
