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
  /** The content in base64. */
  data: Type.String(),
  executable: Type.Optional(Type.Boolean()),
})
export const ScriptInput = Type.Object({
  /** The path of the script inside `folder`. */
  path: Path,
  args: Type.Optional(Type.Array(Type.String())),
  /** A path in the workspace that is the script's working directory; the workspace itself by default. */
  folder: Type.Optional(Path),
  /** Files that are written to `folder` before the script runs. */
  files: Type.Optional(Type.Array(ScriptFile)),
  timeoutSeconds: seconds,
})

export const FilesInput = Type.Object({
  /** A path in the workspace. */
  folder: Path,
  files: Type.Array(ScriptFile),
})

/** What tools need to start processes. */
export interface Machine {
  readonly workspace: Workspace
  readonly processes: Processes
}

/** The limits of one call. The caller stops waiting after `timeoutMs`. */
export interface CallLimits {
  readonly signal: AbortSignal
  readonly timeoutMs: number
  /** How processes reach hosts during the present run. */
  readonly egress?: EgressAccess | undefined
}

/** A process is stopped this long before its call ends, because partial output in time is better than none. */
const answerMs = 1_000
/** The kernel reads no more bytes of a first line either. */
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

/** Prefers bash, because models write scripts for it. */
const shellOf = (): string => ['/bin/bash', '/usr/bin/bash'].find((file) => existsSync(file)) ?? '/bin/sh'

/** Writes files that the runner provides, so that processes of the agent find them. */
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

/** Resolves a path inside the script's own folder. The script's files cannot replace files of the agent. */
function within(folder: string, path: string): string {
  const joined = join(folder, path)
  if (relative(folder, joined).startsWith('..')) throw refused(`'${path}' is not inside the folder of the script.`)
  return joined
}

async function interpreterOf(script: string, path: string): Promise<readonly string[]> {
  const line = await firstLine(script)
  const shebang = /^#!\s*(\S+)(?:\s+(.*\S))?\s*$/.exec(line)
  // Everything after the interpreter is one argument, as the kernel does it.
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

/** Addresses inside the sandbox, and its runner, are requested without a proxy. */
const noProxy = 'localhost,127.0.0.1,::1'

/**
 * Environment variables by which programs find the proxy. Both spellings are set: curl ignores `HTTP_PROXY`, others ignore `http_proxy`. A program
 * that requests https is told by the proxy to request http.
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
