import { constants, type FileHandle, open } from 'node:fs/promises'
import type { ToolResult } from '#contracts/tools'
import { explained, refused } from './errors.ts'
import type { Workspace } from './workspace.ts'

/** Most of a file that one call shows. */
export const maxReadBytes = 128 * 1024
const defaultLines = 2_000
/** A file with a NUL in its beginning is no text. */
const looked = 8 * 1024
const blockBytes = 64 * 1024

export interface ReadInput {
  readonly path: string
  /** The first line to show; the first one of the file is 1. */
  readonly offset?: number
  /** How many lines. */
  readonly limit?: number
}

export async function readFile(
  workspace: Workspace,
  { path, offset = 1, limit = defaultLines }: ReadInput,
): Promise<ToolResult> {
  const real = await workspace.existing(path)
  // Not blocking: opening a pipe would wait for who writes to it.
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
  const { buffer, bytesRead } = await handle.read(Buffer.alloc(looked), 0, looked, 0)
  return buffer.subarray(0, bytesRead).includes(0)
}

interface Slice {
  readonly bytes: Buffer
  /** Lines shown, the last one perhaps not whole. */
  readonly lines: number
  readonly end: 'file' | 'lines' | 'bytes'
}

/** The lines from `offset` on, as many as were asked for and fit. */
async function slice(handle: FileHandle, offset: number, limit: number): Promise<Slice> {
  const parts: Buffer[] = []
  let size = 0
  let line = 1
  const done = (end: Slice['end']): Slice => {
    const bytes = Buffer.concat(parts)
    const whole = bytes.length === 0 || bytes.at(-1) === 0x0a
    return { bytes, lines: Math.max(0, line - offset) + (whole ? 0 : 1), end }
  }
  for (let position = 0; ;) {
    const { buffer, bytesRead } = await handle.read(Buffer.allocUnsafe(blockBytes), 0, blockBytes, position)
    if (bytesRead === 0) return done('file')
    position += bytesRead
    for (let at = 0; at < bytesRead;) {
      if (line >= offset + limit) return done('lines')
      const newline = buffer.subarray(0, bytesRead).indexOf(0x0a, at)
      const end = newline < 0 ? bytesRead : newline + 1
      if (line >= offset) {
        const part = buffer.subarray(at, Math.min(end, at + maxReadBytes - size))
        parts.push(part)
        size += part.length
        if (part.length < end - at) return done('bytes')
      }
      if (newline >= 0) line++
      at = end
    }
  }
}

function shown({ bytes, lines, end }: Slice, offset: number): ToolResult {
  const text = bytes.toString('utf8')
  if (lines === 0)
    return { ok: true, content: offset === 1 ? '[The file is empty.]' : `[The file has no line ${offset}.]` }
  const last = offset + lines - 1
  const more = {
    file: undefined,
    lines: `The file goes on: offset ${last + 1} shows more.`,
    bytes: `Cut in line ${last}, after ${maxReadBytes / 1024} KiB: offset ${last} shows that line, shell commands what is longer.`,
  }[end]
  if (more === undefined) return { ok: true, content: text }
  return { ok: true, content: `${text}${text.endsWith('\n') ? '' : '\n'}[Lines ${offset} to ${last}. ${more}]` }
}
