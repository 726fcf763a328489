import { open, stat } from 'node:fs/promises'
import { extname, join, relative } from 'node:path'
import type { ToolResult } from '#contracts/tools'
import { refused } from './errors.ts'
import type { Processes } from './processes.ts'
import { type Limits, shellOf, timeFor, told } from './shell.ts'
import type { Workspace } from './workspace.ts'
import { put } from './write-file.ts'

/** The kernel reads no more of a first line either. */
const shebangBytes = 256

export interface ScriptFile {
  readonly path: string
  /** Base64. */
  readonly data: string
  readonly executable?: boolean
}

export interface ScriptInput {
  /** In `folder`. */
  readonly path: string
  readonly args?: readonly string[]
  /** Of the workspace, and the script's current folder; the workspace itself unless given. */
  readonly folder?: string
  /** Written to `folder` first. */
  readonly files?: readonly ScriptFile[]
  readonly timeoutSeconds?: number
}

export async function runScript(
  { workspace, processes }: { readonly workspace: Workspace; readonly processes: Processes },
  { path, args = [], folder = '.', files = [], timeoutSeconds }: ScriptInput,
  limits: Limits,
): Promise<ToolResult> {
  for (const { path: file, data, executable = false } of files) {
    await put(workspace, within(folder, file), Buffer.from(data, 'base64'), { mode: executable ? 0o755 : 0o644 })
  }
  const cwd = await workspace.existing(folder)
  const script = await workspace.existing(within(folder, path))
  if (!(await stat(script)).isFile()) throw refused(`'${path}' is no regular file.`)
  const timeoutMs = timeFor(timeoutSeconds, limits)
  const command = [...(await interpreterOf(script, path)), script, ...args] as [string, ...string[]]
  return told(await processes.execute({ command, cwd, timeoutMs, signal: limits.signal }), timeoutMs)
}

/** Files that come with a script stay together: one of them cannot replace what the agent has made. */
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
