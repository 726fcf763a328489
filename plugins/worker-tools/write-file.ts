import { constants, mkdir, open } from 'node:fs/promises'
import { dirname } from 'node:path'
import type { ToolResult } from '#contracts/tools'
import { explained, refused } from './errors.ts'
import type { Workspace } from './workspace.ts'

export interface WriteInput {
  readonly path: string
  readonly content: string
  readonly append?: boolean
}

export async function writeFile(
  workspace: Workspace,
  { path, content, append = false }: WriteInput,
): Promise<ToolResult> {
  const bytes = Buffer.from(content)
  await put(workspace, path, bytes, { append })
  return { ok: true, content: `${append ? 'Appended' : 'Wrote'} ${bytes.length} bytes to '${path}'.` }
}

export async function put(
  workspace: Workspace,
  path: string,
  bytes: Uint8Array,
  { append = false, mode = 0o644 }: { readonly append?: boolean; readonly mode?: number } = {},
): Promise<string> {
  const real = await workspace.writable(path)
  try {
    await mkdir(dirname(real), { recursive: true })
    const { O_WRONLY, O_CREAT, O_NOFOLLOW, O_NONBLOCK, O_APPEND } = constants
    // What it leads to was resolved; a link that stands here since is not followed.
    const handle = await open(real, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | (append ? O_APPEND : 0), mode)
    try {
      if (!(await handle.stat()).isFile()) throw refused(`'${path}' is no regular file.`)
      if (!append) await handle.truncate()
      await handle.writeFile(bytes)
    } finally {
      await handle.close()
    }
    return real
  } catch (error) {
    throw explained(path, error)
  }
}
