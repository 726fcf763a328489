import { constants, type FileHandle, lstat, mkdir, open, readdir, readlink } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { type Static, Type } from '@sinclair/typebox'
import type { ToolResult } from '#contracts/tools'
import { explained, refused } from './errors.ts'
import { Path, type Workspace } from './workspace.ts'

/** The most bytes of a file that one call returns. */
export const maxReadBytes = 128 * 1024
const defaultLines = 2_000
/** A file with a NUL byte in this many first bytes is not text. */
const beginningBytes = 8 * 1024
const blockBytes = 64 * 1024
/** Most entries of one list. */
export const maxEntries = 1_000
const defaultDepth = 2

export const ReadInput = Type.Object({
  path: Path,
  /** The number of lines to skip. */
  offset: Type.Optional(Type.Integer({ minimum: 0 })),
  /** The number of lines to return. */
  limit: Type.Optional(Type.Integer({ minimum: 1 })),
})
export const WriteInput = Type.Object({ path: Path, content: Type.String(), append: Type.Optional(Type.Boolean()) })
export const ListInput = Type.Object({
  path: Type.Optional(Path),
  depth: Type.Optional(Type.Integer({ minimum: 1, maximum: 20 })),
})

export async function readFile(
  workspace: Workspace,
  { path, offset = 0, limit = defaultLines }: Static<typeof ReadInput>,
): Promise<ToolResult> {
  const real = await workspace.existing(path)
  // O_NONBLOCK is needed, because opening a pipe would wait for a writer.
  const handle = await open(real, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK).catch(
    (error: unknown) => {
      throw explained(path, error)
    },
  )
  try {
    const info = await handle.stat()
    if (info.isDirectory()) throw refused(`'${path}' is a folder: use list_files.`)
    if (!info.isFile()) throw refused(`'${path}' is no regular file.`)
    if (await isBinary(handle)) return { ok: false, content: `'${path}' is a binary file of ${info.size} bytes.` }
    return shown(await slice(handle, offset, limit), offset)
  } finally {
    await handle.close()
  }
}

async function isBinary(handle: FileHandle): Promise<boolean> {
  const { buffer, bytesRead } = await handle.read(Buffer.alloc(beginningBytes), 0, beginningBytes, 0)
  return buffer.subarray(0, bytesRead).includes(0)
}

interface Slice {
  readonly bytes: Buffer
  readonly end: 'file' | 'lines' | 'bytes'
}

/** Returns the lines after the first `skip`: at most `limit`, and no more than fit into one answer. */
async function slice(handle: FileHandle, skip: number, limit: number): Promise<Slice> {
  const parts: Buffer[] = []
  let size = 0
  let line = 0
  const done = (end: Slice['end']): Slice => ({ bytes: Buffer.concat(parts), end })
  for (let position = 0; ;) {
    const { buffer, bytesRead } = await handle.read(Buffer.allocUnsafe(blockBytes), 0, blockBytes, position)
    if (bytesRead === 0) return done('file')
    position += bytesRead
    const block = buffer.subarray(0, bytesRead)
    for (let at = 0; at < bytesRead;) {
      if (line >= skip + limit) return done('lines')
      const newline = block.indexOf(0x0a, at)
      const end = newline < 0 ? bytesRead : newline + 1
      if (line >= skip) {
        const part = block.subarray(at, Math.min(end, at + maxReadBytes - size))
        parts.push(part)
        size += part.length
        if (part.length < end - at) return done('bytes')
      }
      if (newline >= 0) line++
      at = end
    }
  }
}

function shown({ bytes, end }: Slice, skipped: number): ToolResult {
  const text = bytes.toString('utf8')
  if (text === '')
    return {
      ok: true,
      content: skipped === 0 ? '[The file is empty.]' : `[The file has no more than ${skipped} lines.]`,
    }
  if (end === 'file') return { ok: true, content: text }
  const lines = text.split('\n').length - 1
  const whole = text.endsWith('\n')
  const note =
    end === 'bytes' && !whole
      ? `Cut after ${maxReadBytes / 1024} KiB, in line ${skipped + lines + 1}: ${lines === 0 ? 'shell commands show the rest of it' : `offset ${skipped + lines} begins with that line`}.`
      : `The file goes on: offset ${skipped + lines} shows more.`
  return { ok: true, content: `${text}${whole ? '' : '\n'}[${note}]` }
}

export async function writeFile(
  workspace: Workspace,
  { path, content, append = false }: Static<typeof WriteInput>,
): Promise<ToolResult> {
  const bytes = Buffer.from(content)
  await put(workspace, path, bytes, { append })
  return { ok: true, content: `${append ? 'Appended' : 'Wrote'} ${bytes.length} bytes to '${path}'.` }
}

/** Writes a file, and creates its folders. Resolves to the real path of the file. */
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
    // Links were resolved before. A link that was put here since then must not be followed.
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

/** Lists one entry per line. Folders end with a slash; links are listed but not followed. */
export async function listFiles(
  workspace: Workspace,
  { path = '.', depth = defaultDepth }: Static<typeof ListInput>,
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
        // A folder that cannot be read, or was deleted in the meantime, is listed without its entries.
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
