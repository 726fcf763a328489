import { skillScriptTool } from '#contracts/skills'
import type { PlatformTool, ToolContext, ToolResult } from '#contracts/tools'
import { settleFilesMs } from '#contracts/wire/worker'

/** Tools that act inside a session's sandbox. A session has only those that its profile lists. */
export const createSandboxTools = (): Readonly<Record<string, PlatformTool>> => ({
  shell,
  read_file: readFile,
  write_file: writeFile,
  list_files: listFiles,
  [skillScriptTool]: runSkillScript,
})

/** How long a file tool may take once its sandbox runs. */
const fileMs = 90_000
/** The extra time for a sandbox that must start first, and for settling the files before and after the call. */
const startMs = 65_000 + 2 * settleFilesMs
const noSandbox: ToolResult = {
  ok: false,
  content: "This session has no sandbox: its profile names none (workerMode 'sandbox', or sandbox.provider).",
}

const inSandbox = async (
  context: ToolContext,
  name: string,
  input: Readonly<Record<string, unknown>>,
  timeoutMs: number,
): Promise<ToolResult> => (context.sandbox ? context.sandbox.call(name, input, timeoutMs) : noSandbox)

/** A tool that the worker has under the same name and with the same input. */
const workerTool = (spec: Pick<PlatformTool, 'name' | 'description' | 'inputSchema'>): PlatformTool => ({
  ...spec,
  timeoutMs: fileMs + startMs,
  execute: (input, context) => inSandbox(context, spec.name, input, fileMs),
})

const pathOf = (description: string) => ({ type: 'string', minLength: 1, maxLength: 4_096, description })

const longestShellSeconds = 600
const usualShellSeconds = 60

/** Fields that limit a process. */
const timeoutSeconds = {
  type: 'integer',
  minimum: 1,
  maximum: longestShellSeconds,
  default: usualShellSeconds,
  description: `Stopped after this long; at most ${longestShellSeconds}.`,
}

/** The worker stops a process at its own limit and still reports the output. The runner waits this much longer. */
const graceMs = 5_000
const longestMs = longestShellSeconds * 1_000 + graceMs + startMs

const shell: PlatformTool = {
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

const readFile = workerTool({
  name: 'read_file',
  description: 'Reads a text file of the workspace. Long files are read in parts, by line.',
  inputSchema: {
    type: 'object',
    properties: {
      path: pathOf('Relative to the workspace.'),
      offset: { type: 'integer', minimum: 0, description: 'Lines to skip; none by default.' },
      limit: { type: 'integer', minimum: 1, maximum: 10_000, description: 'Lines to read; 2,000 by default.' },
    },
    required: ['path'],
    additionalProperties: false,
  },
})

const writeFile = workerTool({
  name: 'write_file',
  description: 'Writes a text file of the workspace, with the folders it is in. Replaces what is there.',
  inputSchema: {
    type: 'object',
    properties: {
      path: pathOf('Relative to the workspace.'),
      content: { type: 'string', maxLength: 2_000_000 },
      append: { type: 'boolean', description: 'Adds to the end instead.' },
    },
    required: ['path', 'content'],
    additionalProperties: false,
  },
})

const listFiles = workerTool({
  name: 'list_files',
  description: 'Lists files and folders of the workspace with their sizes.',
  inputSchema: {
    type: 'object',
    properties: {
      path: pathOf('Folder, relative to the workspace; the workspace itself by default.'),
      depth: { type: 'integer', minimum: 1, maximum: 10, description: 'Levels of folders; 2 by default.' },
    },
    additionalProperties: false,
  },
})

const failed = (content: string): ToolResult => ({ ok: false, content })

/** Runs a script of one of the session's skills. Each call brings the skill's files into the sandbox. */
const runSkillScript: PlatformTool = {
  name: skillScriptTool,
  description: 'Runs a script of one of your skills in the sandbox, from the folder of the skill.',
  inputSchema: {
    type: 'object',
    properties: {
      skill: { type: 'string', minLength: 1, maxLength: 64 },
      script: pathOf('Path inside the skill, e.g. scripts/convert.py.'),
      args: { type: 'array', items: { type: 'string', maxLength: 10_000 }, maxItems: 100, default: [] },
      timeoutSeconds,
    },
    required: ['skill', 'script'],
    additionalProperties: false,
  },
  timeoutMs: longestMs,
  async execute({ skill, script, args, timeoutSeconds: seconds }, context) {
    const name = String(skill)
    // A skill that exists in the tenant but not in this session gets the same answer as an unknown skill.
    const mine = context.skills?.find((one) => one.name === name)?.files
    if (!mine) {
      const names = context.skills?.map((one) => one.name).join(', ')
      return failed(`This session has no skill '${name}'; it has: ${names || 'none'}.`)
    }
    if (!mine.some(({ path }) => path === script)) {
      const scripts = mine.flatMap(({ path }) => (path.startsWith('scripts/') ? [path] : []))
      return failed(
        `The skill '${name}' has no file '${String(script)}'; its scripts: ${scripts.join(', ') || 'none'}.`,
      )
    }
    const files = mine.map(({ path, bytes, executable }) => ({
      path,
      data: Buffer.from(bytes).toString('base64'),
      executable,
    }))
    const input = { folder: `.skills/${name}`, files, path: script, args, timeoutSeconds: seconds }
    return inSandbox(context, 'run_script', input, Number(seconds) * 1_000 + graceMs)
  },
}
