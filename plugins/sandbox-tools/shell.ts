import type { PlatformTool } from '#contracts/tools'
import { inSandbox, pathOf, startMs } from './sandbox.ts'

export const longestShellSeconds = 600
const usualShellSeconds = 60

/** Fields by which a caller bounds what it starts. */
export const timeoutSeconds = {
  type: 'integer',
  minimum: 1,
  maximum: longestShellSeconds,
  default: usualShellSeconds,
  description: `Stopped after this long; at most ${longestShellSeconds}.`,
}

/** What a process in the sandbox may take, seen from here: its own limit stops it first, and says what it has written. */
export const graceMs = 5_000
export const longestMs = longestShellSeconds * 1_000 + graceMs + startMs

export const shell: PlatformTool = {
  name: 'shell',
  description:
    'Runs a shell command in the workspace of the sandbox and returns its output and exit code. Files stay for later commands; processes do not.',
  inputSchema: {
    type: 'object',
    properties: {
      command: { type: 'string', minLength: 1, maxLength: 100_000 },
      cwd: pathOf('Folder to run in, relative to the workspace.'),
      timeoutSeconds,
    },
    required: ['command'],
    additionalProperties: false,
  },
  timeoutMs: longestMs,
  execute: (input, context) => inSandbox(context, 'shell', input, Number(input['timeoutSeconds']) * 1_000 + graceMs),
}
