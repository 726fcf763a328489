import type { PlatformTool, ToolContext, ToolResult } from '#contracts/tools'

/** How long a file tool may take, the start of a sandbox included. */
export const fileMs = 90_000
/** A sandbox that is not there yet starts first; its start has a limit of its own. */
export const startMs = 65_000
const noSandbox: ToolResult = {
  ok: false,
  content: "This session has no sandbox: its profile names none (workerMode 'sandbox', or sandbox.provider).",
}

export const inSandbox = async (
  context: ToolContext,
  name: string,
  input: Readonly<Record<string, unknown>>,
  timeoutMs: number,
): Promise<ToolResult> => (context.sandbox ? context.sandbox.call(name, input, timeoutMs) : noSandbox)

/** A tool that the worker has under the same name and with the same input. */
export const workerTool = (spec: Pick<PlatformTool, 'name' | 'description' | 'inputSchema'>): PlatformTool => ({
  ...spec,
  timeoutMs: fileMs + startMs,
  execute: (input, context) => inSandbox(context, spec.name, input, fileMs),
})

export const pathOf = (description: string) => ({ type: 'string', minLength: 1, maxLength: 4_096, description })
