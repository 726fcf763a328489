import { lstat, readdir, readlink } from 'node:fs/promises'
import { join } from 'node:path'
import type { ToolResult } from '#contracts/tools'
import { explained, refused } from './errors.ts'
import type { Workspace } from './workspace.ts'

/** Most entries of one answer. */
export const maxEntries = 1_000
const defaultDepth = 2

export interface ListInput {
  readonly path?: string
  readonly depth?: number
}

/** One entry a line, folders with a slash at their end; links are named and not followed. */
export async function listFiles(
  workspace: Workspace,
  { path = '.', depth = defaultDepth }: ListInput,
): Promise<ToolResult> {
  const top = await workspace.existing(path)
  const lines: string[] = []
  let cut = false
  const walk = async (folder: string, shown: string, left: number): Promise<void> => {
    const entries = await readdir(folder, { withFileTypes: true })
    for (const entry of entries.toSorted((a, b) => (a.name < b.name ? -1 : 1))) {
      if (lines.length >= maxEntries) {
        cut = true
        return
      }
      const real = join(folder, entry.name)
      const name = shown + entry.name
      if (entry.isDirectory()) {
        lines.push(`${name}/`)
        // One that may not be read, or is gone meanwhile, is only named.
        if (left > 1) await walk(real, `${name}/`, left - 1).catch(() => {})
      } else if (entry.isSymbolicLink()) lines.push(`${name} -> ${await readlink(real).catch(() => '?')}`)
      else lines.push(entry.isFile() ? `${name} (${await sizeOf(real)} bytes)` : name)
    }
  }
  try {
    if (!(await lstat(top)).isDirectory()) throw refused(`'${path}' is a file: use read_file.`)
    await walk(top, '', depth)
  } catch (error) {
    throw explained(path, error)
  }
  if (cut) lines.push(`[Only the first ${maxEntries} entries are shown: list a folder of them, or less deep.]`)
  return { ok: true, content: lines.join('\n') || '[The folder is empty.]' }
}

const sizeOf = async (file: string): Promise<number | string> =>
  lstat(file).then(
    ({ size }) => size,
    () => '?',
  )
