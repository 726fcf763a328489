import { isAppError } from '#kernel'
import type { Database } from '#contracts/database'
import type { McpServers } from '#contracts/mcp-servers'
import { isProfileName, type Profiles } from '#contracts/profiles'
import type { Fleet } from '#contracts/runner'
import type { OutputSchemas } from '#kit/schemas'
import { unknownDefinitions } from './definitions.store.ts'
import type { Evaluator } from './evaluator.ts'
import type { Lookups } from './validate.ts'

interface LookupDeps {
  readonly database: Database
  readonly profiles: Profiles
  readonly fleet: Fleet
  readonly mcp: McpServers | undefined
  readonly schemas: OutputSchemas
  readonly evaluator: Evaluator
}

/** Looks up the things that a definition names in a tenant. */
export const createLookups =
  ({ database, profiles, fleet, mcp, schemas, evaluator }: LookupDeps) =>
  (tenantId: string): Required<Lookups> => ({
    async profiles(names) {
      const unknown: string[] = []
      for (const name of names) {
        if (!isProfileName(name) || !(await profiles.findPlaced(tenantId, name, true))) unknown.push(name)
      }
      return unknown
    },
    async tools(names) {
      const servers = [...new Set(names.filter((name) => name.includes('/')).map(serverOf))]
      const unknownServers = new Set(servers.length === 0 ? [] : await (mcp?.unknown(tenantId, servers) ?? servers))
      const runners = fleet.describe()
      // Runners that are unreachable or old do not list their tools. While one list is missing, no platform tool counts as unknown.
      const known = runners.length > 0 && runners.every(({ tools }) => tools !== undefined)
      const tools = new Set(runners.flatMap((runner) => runner.tools ?? []))
      return names.filter((name) =>
        name.includes('/') ? unknownServers.has(serverOf(name)) : known && !tools.has(name),
      )
    },
    definitions: (ids) => unknownDefinitions(database, tenantId, ids),
    expressions: (texts) => evaluator.problems(tenantId, texts),
    async schema(schema) {
      try {
        await schemas(tenantId, schema)
        return undefined
      } catch (error) {
        if (!isAppError(error) || error.status !== 400) throw error
        return error.sentence ?? error.code
      }
    },
    value: async (schema, value) => (await schemas(tenantId, schema)).problem(value),
  })

const serverOf = (tool: string): string => tool.slice(0, tool.indexOf('/'))
