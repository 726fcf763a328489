import { randomUUID } from 'node:crypto'
import type { AppTool } from '#contracts/apps'
import { appCallStage, type Delegations } from '#contracts/delegation'
import type { Profile } from '#contracts/profiles'
import type { RunnerSession } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'
import type { ToolContext, ToolResult } from '#contracts/tools'

/** The app tools that a run has in addition to those of its session, by name. A conductor calls them. */
export type RunApps = ReadonlyMap<string, AppTool>

/** An app tool with the name of a session tool is dropped, because the profile named the session tool explicitly. */
export function appsOf({ tools }: Pick<RunnerSession, 'tools'>, offered: readonly AppTool[]): RunApps {
  return new Map(offered.filter(({ name }) => !tools.includes(name)).map((tool) => [tool.name, tool]))
}

/** The profile as a runtime gets it, with app tools among the tools of the session's endpoint. */
export const withApps = (profile: Profile, apps: RunApps): Profile => ({
  ...profile,
  tools: [...profile.tools, ...apps.keys()],
})

/** Has a conductor call the app, because app accounts never leave the conductor. */
export async function callApp(
  delegations: Pick<Delegations, 'call'>,
  { name, toolkit, tool }: AppTool,
  input: unknown,
  context: ToolContext,
): Promise<ToolResult> {
  if (typeof input !== 'object' || input === null || Array.isArray(input)) {
    throw runnerErrors.toolNotAllowed({ message: `The input of '${name}' is no object.` })
  }
  const app = { toolkit, ...(tool === undefined ? {} : { tool }), input: input as Record<string, unknown> }
  // Draw a new id per call, because the ids of models repeat. The ledger of the run recognizes a call that is executed again.
  const answer = delegations.call(context, { id: randomUUID(), parentRunId: context.runId, app })
  context.report?.({ type: 'progress', stage: appCallStage, message: `'${name}' is called.` })
  const { ok, content } = await answer
  return { ok, content }
}
