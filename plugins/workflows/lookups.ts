import { isAppError } from '#kernel'
import type { Database } from '#contracts/database'
import type { McpServers } from '#contracts/mcp-servers'
import { isProfileName, type Profiles } from '#contracts/profiles'
import type { Fleet } from '#contracts/runner'
import type { OutputSchemas } from '#kit/schemas'
import { findDefinition, unknownDefinitions } from './definitions.store.ts'
import type { Evaluator } from './evaluator.ts'
import type { Lookups } from './validate.ts'
import { type Problem, workflowErrors } from './errors.ts'
import type { Definition, ScheduleBody } from './schema.ts'
import { cronProblem } from './times.ts'

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

/** What a schedule runs, or why it cannot. */
export type Target =
  | { readonly id?: string; readonly version?: number; readonly definition: Definition }
  | { readonly failure: string }

interface TargetDeps {
  readonly database: Database
  lookups(tenantId: string): Lookups
}

/** Finds what a schedule runs: a stored workflow, or a single agent as a workflow of one node. */
export async function targetOf(
  { database, lookups }: TargetDeps,
  tenantId: string,
  { workflowDefinitionId, profile, prompt, name, input }: ScheduleBody,
): Promise<Target> {
  if (profile !== undefined) {
    if ((await lookups(tenantId).profiles?.([profile]))?.length)
      return { failure: 'The profile of the schedule is not there any more.' }
    const nodes = [{ id: 'agent', type: 'agent' as const, profile, prompt: prompt! }]
    // The name that a client sent may contain a NUL, which PostgreSQL cannot store.
    const runName = name?.replaceAll('\u0000', '\uFFFD') ?? `Schedule of ${profile}`
    return { definition: { name: runName, nodes } as Definition }
  }
  const found = await findDefinition(database, tenantId, workflowDefinitionId ?? '')
  if (!found) return { failure: 'The workflow definition of the schedule is not there any more.' }
  const { inputSchema } = found.definition
  const problem = inputSchema && (await lookups(tenantId).value?.(inputSchema, input ?? {}))
  if (problem) return { failure: `The input does not fit: ${problem}` }
  return { id: found.id, version: found.version, definition: found.definition }
}

/** Rejects with 400 for a schedule that could never run: `invalid_schedule`, or `invalid_input` when its input does not fit. */
export async function checkSchedule(deps: TargetDeps, tenantId: string, body: ScheduleBody): Promise<void> {
  const problems: Problem[] = []
  const { workflowDefinitionId, profile, prompt } = body
  const lookups = deps.lookups(tenantId)
  if ((workflowDefinitionId === undefined) === (profile === undefined)) {
    problems.push({ path: 'body', message: 'needs `workflowDefinitionId`, or `profile` and `prompt`' })
  }
  if ((profile === undefined) !== (prompt === undefined))
    problems.push({
      path: 'body/prompt',
      message: profile === undefined ? 'needs a `profile`' : 'is needed with a profile',
    })
  const [unfit] = prompt === undefined ? [] : ((await lookups.expressions?.([{ text: prompt }])) ?? [])
  if (unfit) problems.push({ path: 'body/prompt', message: unfit })
  const cron = cronProblem(body)
  if (cron) problems.push(cron)
  if (profile !== undefined && (await lookups.profiles?.([profile]))?.length) {
    problems.push({ path: 'body/profile', message: `there is no profile '${profile}'` })
  }
  if (workflowDefinitionId !== undefined && (await lookups.definitions?.([workflowDefinitionId]))?.length) {
    problems.push({
      path: 'body/workflowDefinitionId',
      message: `there is no workflow definition '${workflowDefinitionId}'`,
    })
  }
  const [first] = problems
  if (first)
    throw workflowErrors.invalidSchedule({ message: `${first.path}: ${first.message}`, detail: { issues: problems } })
  if (workflowDefinitionId === undefined) return
  const target = await targetOf(deps, tenantId, body)
  if ('failure' in target) throw workflowErrors.invalidInput({ message: target.failure })
}
