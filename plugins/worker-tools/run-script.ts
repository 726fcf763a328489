import { createHash } from 'node:crypto'
import { open } from 'node:fs/promises'
import { extname, join } from 'node:path'
import type { ToolResult } from '#contracts/tools'
import { refused } from './errors.ts'
import type { Processes } from './processes.ts'
import { type Limits, shellOf, timeFor, told } from './shell.ts'
import type { Workspace } from './workspace.ts'
import { put } from './write-file.ts'

/** Where scripts that come with a call are put, so that two skills with files of one name do not meet. */
const scriptsFolder = '.scripts'
/** The kernel reads no more of a first line either. */
const shebangBytes = 256

export interface ScriptFile {
  readonly path: string
  readonly content: string
  /** `utf8` unless given. */
  readonly encoding?: 'utf8' | 'base64'
  readonly executable?: boolean
}

export interface ScriptInput {
  /** Of the script: among `files`, or without them in the workspace. */
  readonly path: string
  readonly args?: readonly string[]
  readonly files?: readonly ScriptFile[]
  readonly timeoutSeconds?: number
}

/** Runs a script with the workspace as its current folder. */
export async function runScript(
  { workspace, processes }: { readonly workspace: Workspace; readonly processes: Processes },
  { path, args = [], files, timeoutSeconds }: ScriptInput,
  limits: Limits,
): Promise<ToolResult> {
  const folder = files ? await unpack(workspace, files) : undefined
  const script = await workspace.existing(folder === undefined ? path : within(folder, path))
  const timeoutMs = timeFor(timeoutSeconds, limits)
  const command = [...(await interpreterOf(script, path)), script, ...args] as [string, ...string[]]
  const outcome = await processes.execute({ command, cwd: workspace.root, timeoutMs, signal: limits.signal })
  return told(outcome, timeoutMs)
}

/** The same files are in the same folder each time, whatever became of them since. */
async function unpack(workspace: Workspace, files: readonly ScriptFile[]): Promise<string> {
  const hash = createHash('sha256').update(JSON.stringify(files)).digest('hex').slice(0, 16)
  const folder = join(scriptsFolder, hash)
  for (const { path, content, encoding = 'utf8', executable = false } of files) {
    await put(workspace, within(folder, path), Buffer.from(content, encoding), { mode: executable ? 0o755 : 0o644 })
  }
  return folder
}

function within(folder: string, path: string): string {
  const joined = join(folder, path)
  if (!joined.startsWith(`${folder}/`)) throw refused(`'${path}' is not inside the folder of the script.`)
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
