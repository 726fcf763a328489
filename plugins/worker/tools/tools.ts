import type { FastifyBaseLogger } from 'fastify'
import { type Static, type TSchema, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { isAppError } from '#kernel'
import type { ToolResult } from '#contracts/tools'
import { listFiles, ListInput, put, readFile, ReadInput, writeFile, WriteInput } from './files.ts'
import { createProcesses, type Processes, type ProcessOutcome } from './processes.ts'
import { createWorkspace, Path, type Workspace } from './workspace.ts'
import { existsSync } from 'node:fs'
import { open, stat } from 'node:fs/promises'
import { extname, join, relative } from 'node:path'
import type { EgressAccess } from '#contracts/egress'
import { refused } from './errors.ts'

/** Tools that act on the machine of a worker, inside one folder. */
export interface Tools {
  /** The real path of the agent's folder. */
  readonly workspace: string
  /** Never rejects when a tool fails: the result says so. */
  call(name: string, input: Readonly<Record<string, unknown>>, limits: CallLimits): Promise<ToolResult>
}

interface ToolsSettings {
  /** The agent's folder; created if it does not exist. */
  readonly workspace: string
  /** `PATH`, `LANG` and `TMPDIR` of the processes that tools start. */
  readonly path: string
  readonly lang: string
  readonly tmpDir: string
}

interface Tool {
  readonly input: TSchema
  call(input: never, limits: CallLimits): Promise<ToolResult>
}

/** A tool with the schema of its input. The runner has checked the input already, but a worker in a sandbox checks again. */
const tool = <S extends TSchema>(
  input: S,
  call: (input: Static<S>, limits: CallLimits) => Promise<ToolResult>,
): Tool => ({
  input,
  call,
})

export async function createTools(settings: ToolsSettings, log: FastifyBaseLogger): Promise<Tools> {
  const workspace = await createWorkspace(settings.workspace)
  // This is the whole environment of a tool, which must not see the worker's token.
  const { path, lang, tmpDir } = settings
  const processes = createProcesses({ PATH: path, HOME: workspace.root, LANG: lang, TMPDIR: tmpDir })
  const machine = { workspace, processes }
  const tools = new Map<string, Tool>([
    ['shell', tool(ShellInput, (input, limits) => shell(machine, input, limits))],
    ['read_file', tool(ReadInput, (input) => readFile(workspace, input))],
    ['write_file', tool(WriteInput, (input) => writeFile(workspace, input))],
    ['list_files', tool(ListInput, (input) => listFiles(workspace, input))],
    ['place_files', tool(FilesInput, (input) => placeFiles(machine, input))],
    ['run_script', tool(ScriptInput, (input, limits) => runScript(machine, input, limits))],
  ])
  return {
    workspace: workspace.root,
    async call(name, input, limits) {
      const found = tools.get(name)
      if (!found) return failed(`There is no tool '${name}' in this sandbox; it has: ${[...tools.keys()].join(', ')}.`)
      const wrong = Value.Errors(found.input, input).First()
      if (wrong) return failed(`The input of '${name}' is invalid: ${wrong.path} ${wrong.message}.`)
      try {
        await workspace.keep()
        return await found.call(input as never, limits)
      } catch (err) {
        // Only the sentence of an AppError is shown: the text of an unknown exception may hold anything.
        if (isAppError(err)) return failed(err.sentence ?? `'${name}' failed.`)
        log.warn({ err, tool: name }, 'a tool failed')
        return failed(`'${name}' failed.`)
      }
    },
  }
}

const failed = (content: string): ToolResult => ({ ok: false, content })

const seconds = Type.Optional(Type.Number({ exclusiveMinimum: 0 }))

const ShellInput = Type.Object({
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
const ScriptInput = Type.Object({
  /** The path of the script inside `folder`. */
  path: Path,
  args: Type.Optional(Type.Array(Type.String())),
  /** A path in the workspace that is the script's working directory; the workspace itself by default. */
  folder: Type.Optional(Path),
  /** Files that are written to `folder` before the script runs. */
  files: Type.Optional(Type.Array(ScriptFile)),
  timeoutSeconds: seconds,
})

const FilesInput = Type.Object({
  /** A path in the workspace. */
  folder: Path,
  files: Type.Array(ScriptFile),
})

/** What tools need to start processes. */
interface Machine {
  readonly workspace: Workspace
  readonly processes: Processes
}

/** The limits of one call. The caller stops waiting after `timeoutMs`. */
interface CallLimits {
  readonly signal: AbortSignal
  readonly timeoutMs: number
  /** How processes reach hosts during the present run. */
  readonly egress?: EgressAccess | undefined
}

/** A process is stopped this long before its call ends, because partial output in time is better than none. */
const answerMs = 1_000
/** The kernel reads no more bytes of a first line either. */
const shebangBytes = 256

async function shell(
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
async function placeFiles({ workspace }: Machine, { folder, files }: Static<typeof FilesInput>): Promise<ToolResult> {
  await place(workspace, folder, files)
  return { ok: true, content: `${files.length} files are in ${folder}.` }
}

async function place(workspace: Workspace, folder: string, files: readonly Static<typeof ScriptFile>[]): Promise<void> {
  for (const { path, data, executable = false } of files) {
    await put(workspace, within(folder, path), Buffer.from(data, 'base64'), { mode: executable ? 0o755 : 0o644 })
  }
}

/** Runs a script by its shebang line or its extension. */
async function runScript(
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
