import type { Database } from '#contracts/database'
import { findDefinition } from './definitions.store.ts'
import { type Problem, workflowErrors } from './errors.ts'
import type { Definition, ScheduleBody } from './schema.ts'
import { cronProblem } from './times.ts'
import type { Lookups } from './validate.ts'

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
