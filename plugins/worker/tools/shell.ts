import { existsSync } from 'node:fs'
import { open, stat } from 'node:fs/promises'
import { extname, join, relative } from 'node:path'
import { type Static, Type } from '@sinclair/typebox'
import type { EgressAccess } from '#contracts/egress'
import type { ToolResult } from '#contracts/tools'
import { refused } from './errors.ts'
import { put } from './files.ts'
import type { Processes, ProcessOutcome } from './processes.ts'
import { Path, type Workspace } from './workspace.ts'

const seconds = Type.Optional(Type.Number({ exclusiveMinimum: 0 }))

export const ShellInput = Type.Object({
  command: Type.String({ minLength: 1 }),
  timeoutSeconds: seconds,
  cwd: Type.Optional(Path),
})

const ScriptFile = Type.Object({
  path: Path,
  /** Base64. */
  data: Type.String(),
  executable: Type.Optional(Type.Boolean()),
})
export const ScriptInput = Type.Object({
  /** In `folder`. */
  path: Path,
  args: Type.Optional(Type.Array(Type.String())),
  /** In the workspace, and the script's current folder; the workspace itself by default. */
  folder: Type.Optional(Path),
  /** Written to `folder` first. */
  files: Type.Optional(Type.Array(ScriptFile)),
  timeoutSeconds: seconds,
})

export const FilesInput = Type.Object({
  /** In the workspace. */
  folder: Path,
  files: Type.Array(ScriptFile),
})

/** Tools that start processes need both. */
export interface Machine {
  readonly workspace: Workspace
  readonly processes: Processes
}

/** The bounds of one call: who called stops waiting after `timeoutMs`. */
export interface CallLimits {
  readonly signal: AbortSignal
  readonly timeoutMs: number
  /** The way out of the sandbox that the run under way has. */
  readonly egress?: EgressAccess | undefined
}

/** A process is stopped this long before its call is over: partial output in time is worth more than nothing. */
const answerMs = 1_000
/** The kernel reads no more of a first line either. */
const shebangBytes = 256

export async function shell(
  { workspace, processes }: Machine,
  { command, timeoutSeconds, cwd = '.' }: Static<typeof ShellInput>,
  limits: CallLimits,
): Promise<ToolResult> {
  const timeoutMs = timeFor(timeoutSeconds, limits)
  const folder = await workspace.existing(cwd)
  const run = { command: [shellOf(), '-c', command] as const, cwd: folder, timeoutMs, ...around(limits) }
  return resultOf(await processes.execute(run), timeoutMs)
}

/** bash where it is: models write for it. */
const shellOf = (): string => ['/bin/bash', '/usr/bin/bash'].find((file) => existsSync(file)) ?? '/bin/sh'

/** Writes files that the runner has, so that what an agent starts finds them. */
export async function placeFiles(
  { workspace }: Machine,
  { folder, files }: Static<typeof FilesInput>,
): Promise<ToolResult> {
  await place(workspace, folder, files)
  return { ok: true, content: `${files.length} files are in ${folder}.` }
}

async function place(workspace: Workspace, folder: string, files: readonly Static<typeof ScriptFile>[]): Promise<void> {
  for (const { path, data, executable = false } of files) {
    await put(workspace, within(folder, path), Buffer.from(data, 'base64'), { mode: executable ? 0o755 : 0o644 })
  }
}

/** Runs a script by its shebang line or its extension. */
export async function runScript(
  { workspace, processes }: Machine,
  { path, args = [], folder = '.', files = [], timeoutSeconds }: Static<typeof ScriptInput>,
  limits: CallLimits,
): Promise<ToolResult> {
  await place(workspace, folder, files)
  const cwd = await workspace.existing(folder)
  const script = await workspace.existing(within(folder, path))
  if (!(await stat(script)).isFile()) throw refused(`'${path}' is no regular file.`)
  const timeoutMs = timeFor(timeoutSeconds, limits)
  const command = [...(await interpreterOf(script, path)), script, ...args] as [string, ...string[]]
  return resultOf(await processes.execute({ command, cwd, timeoutMs, ...around(limits) }), timeoutMs)
}

/** Resolves a path inside the script's own folder, so that its files cannot replace the agent's. */
function within(folder: string, path: string): string {
  const joined = join(folder, path)
  if (relative(folder, joined).startsWith('..')) throw refused(`'${path}' is not inside the folder of the script.`)
  return joined
}

async function interpreterOf(script: string, path: string): Promise<readonly string[]> {
  const line = await firstLine(script)
  const shebang = /^#!\s*(\S+)(?:\s+(.*\S))?\s*$/.exec(line)
  // What follows the interpreter is one argument, as for the kernel.
  if (shebang) return shebang[2] === undefined ? [shebang[1]!] : [shebang[1]!, shebang[2]]
  const known: Readonly<Record<string, string>> = {
    '.sh': shellOf(),
    '.py': 'python3',
    '.js': process.execPath,
    '.mjs': process.execPath,
    '.cjs': process.execPath,
  }
  const interpreter = known[extname(path)]
  if (interpreter === undefined)
    throw refused(`'${path}' has no shebang line and ends in none of ${Object.keys(known).join(', ')}.`)
  return [interpreter]
}

async function firstLine(script: string): Promise<string> {
  const handle = await open(script, 'r')
  try {
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(shebangBytes), 0, shebangBytes, 0)
    return buffer.toString('utf8', 0, bytesRead).split('\n', 1)[0]!
  } finally {
    await handle.close()
  }
}

/** What is in the sandbox itself is asked without a proxy; so is its runner. */
const noProxy = 'localhost,127.0.0.1,::1'

/**
 * The environment by which programs find their way out. Some read only one spelling of a variable: curl no `HTTP_PROXY`, others no
 * `http_proxy`. What asks for https is told by the proxy to ask for http.
 */
const egressVariables = ({ proxyUrl, baseUrl, key }: EgressAccess): Record<string, string> => ({
  http_proxy: proxyUrl,
  HTTP_PROXY: proxyUrl,
  https_proxy: proxyUrl,
  HTTPS_PROXY: proxyUrl,
  no_proxy: noProxy,
  NO_PROXY: noProxy,
  AGENT_ORC_EGRESS_URL: baseUrl,
  AGENT_ORC_EGRESS_KEY: key,
})
const around = ({ signal, egress }: CallLimits) => ({ signal, env: egress && egressVariables(egress) })

/** The process's time limit: a second less than the call's, so that its answer still arrives in time. */
function timeFor(seconds: number | undefined, { timeoutMs }: CallLimits): number {
  const most = Math.max(timeoutMs - answerMs, timeoutMs / 2)
  return seconds === undefined ? most : Math.min(seconds * 1_000, most)
}

function resultOf({ code, killed, output }: ProcessOutcome, timeoutMs: number): ToolResult {
  const ending =
    killed === 'timeout'
      ? `It was killed after ${timeoutMs / 1_000} s.`
      : killed === 'cancelled'
        ? 'It was stopped.'
        : killed !== undefined
          ? `It was killed by ${killed}.`
          : `Exit code ${code}.`
  const text = output === '' || output.endsWith('\n') ? output : `${output}\n`
  return { ok: code === 0, content: `${text}[${ending}]` }
}
