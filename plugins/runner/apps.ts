import { randomUUID } from 'node:crypto'
import type { AppTool } from '#contracts/apps'
import { appCallStage, type Delegations } from '#contracts/delegation'
import type { Profile } from '#contracts/profiles'
import type { RunnerSession } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'
import type { ToolContext, ToolResult } from '#contracts/tools'

/** The tools of apps that a run has beside those of its session, by name; a conductor calls them. */
export type RunApps = ReadonlyMap<string, AppTool>

/** One that is called like a tool of the session is not there: that one was named. */
export function appsOf({ tools }: Pick<RunnerSession, 'tools'>, offered: readonly AppTool[]): RunApps {
  return new Map(offered.filter(({ name }) => !tools.includes(name)).map((tool) => [tool.name, tool]))
}

/** The profile as a runtime gets it: the tools of apps are among those that it finds at the session's endpoint. */
export const withApps = (profile: Profile, apps: RunApps): Profile => ({
  ...profile,
  tools: [...profile.tools, ...apps.keys()],
})

/** Has a conductor call the app: accounts never leave it. */
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
  // Drawn for each call: ids of models repeat, and a call that is executed again is found by the ledger of its run.
  const answer = delegations.call(context, { id: randomUUID(), parentRunId: context.runId, app })
  context.report?.({ type: 'progress', stage: appCallStage, message: `'${name}' is called.` })
  const { ok, content } = await answer
  return { ok, content }
}
