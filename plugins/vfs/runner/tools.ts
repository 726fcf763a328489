import { buffer } from 'node:stream/consumers'
import { isUtf8 } from 'node:buffer'
import { isAppError } from '#kernel'
import { objectErrors } from '#contracts/object-store'
import type { SessionVfs } from '#contracts/session-vfs'
import type { PlatformTool, ToolContext, ToolResult } from '#contracts/tools'
import { folderOf, isMountName, isVfsPath, maxPathBytes, type VfsEntry, vfsErrors } from '#contracts/vfs'
import { settleFilesMs } from '#contracts/wire/worker'
import { contentTypeOf } from '#kit/files'
import { mostShownBytes, wholeCharacters } from '#kit'

/** Bytes of a binary file in one answer; base64 makes them a third longer. */
const mostBinaryBytes = 168 * 1024
const mostWritten = 4 * 1024 * 1024
const mostListed = 200
/** Timeout of a tool in milliseconds. It covers the server, and synchronizing the files of a sandbox before and after. */
const timeoutMs = 30_000 + 2 * settleFilesMs

const ok = (content: string): ToolResult => ({ ok: true, content })
const failed = (content: string): ToolResult => ({ ok: false, content })
const noFile = (path: unknown): ToolResult => failed(`There is no file '${String(path)}'.`)

const pathOf = (description: string) => ({ type: 'string', maxLength: maxPathBytes + 100, description })

interface Place {
  readonly mount: string
  /** The path below the mount; '' is the mount itself. */
  readonly path: string
}

/** Parses `mount/path`, with an optional `/` or, as in a sandbox, `/vfs/` before it. */
function placeOf(text: unknown): Place | undefined {
  const given = String(text ?? '')
    .replace(/^\/(vfs(\/|$))?/, '')
    .replace(/\/$/, '')
  if (given === '') return undefined
  const [mount = '', ...rest] = given.split('/')
  if (!isMountName(mount))
    throw vfsErrors.invalidPath({ message: `'${mount}' is no name of a mount: a path is mount/folder/file.` })
  const path = rest.join('/')
  if (path !== '' && !isVfsPath(path)) throw vfsErrors.invalidPath()
  return { mount, path }
}

/** Parses the place of a file. Throws if the text names no file of a mount. */
function filePlaceOf(text: unknown): Place {
  const place = placeOf(text)
  if (!place || place.path === '')
    throw vfsErrors.invalidPath({ message: `'${String(text)}' is no file: a path is mount/folder/file.` })
  return place
}

type Execute = (
  files: SessionVfs,
  input: Readonly<Record<string, unknown>>,
  context: ToolContext,
) => Promise<ToolResult>

/** Each tool first synchronizes the sandbox, so that it sees files that programs there have just written. */
const tool = (
  spec: Pick<PlatformTool, 'name' | 'description'> & { readonly input: object; readonly required?: readonly string[] },
  execute: Execute,
): PlatformTool => ({
  name: spec.name,
  description: spec.description,
  inputSchema: { type: 'object', properties: spec.input, required: spec.required ?? [], additionalProperties: false },
  timeoutMs,
  async execute(input, context) {
    if (!context.vfs) return failed('This session has no VirtualFS.')
    const notes = [await context.sandbox?.settleFiles()]
    const { ok: done, content } = await execute(context.vfs, input, context).catch(refused)
    return { ok: done, content: [content, ...notes.filter((note) => note !== undefined)].join('\n') }
  },
})

/** A model can correct errors below 500, so they are only answered. Other errors are rethrown, so that they are logged as well. */
function refused(error: unknown): ToolResult {
  if (!isAppError(error) || error.status >= 500 || error.sentence === undefined) throw error
  return failed(error.sentence)
}

const read = tool(
  {
    name: 'vfs_read',
    description:
      'Reads a file of the virtual file system. Text is read by lines, a long one in parts; other files are given as base64, by bytes.',
    input: {
      path: pathOf('mount/folder/file'),
      offset: { type: 'integer', minimum: 0, default: 0, description: 'Lines to skip; bytes with base64.' },
      limit: { type: 'integer', minimum: 1, description: 'Lines to read, 2,000 by default; bytes with base64.' },
      encoding: {
        type: 'string',
        enum: ['text', 'base64'],
        description: '`text` by default; base64 for a file that is not text.',
      },
    },
    required: ['path'],
  },
  async (files, input, { signal }) => {
    const { mount, path } = filePlaceOf(input['path'])
    const [offset, limit] = [Number(input['offset']), input['limit'] as number | undefined]
    if (input['encoding'] !== 'base64') {
      const file = await files.read(mount, path, { signal })
      if (!file) return noFile(input['path'])
      const text = await readText(file.body, offset, limit)
      if (text !== undefined) return ok(text)
      if (input['encoding'] === 'text') return failed(`'${path}' is no text: read it with encoding base64.`)
      return bytesOf(files, { mount, path }, 0, mostBinaryBytes, signal)
    }
    return bytesOf(files, { mount, path }, offset, limit ?? mostBinaryBytes, signal)
  },
)

async function bytesOf(
  files: SessionVfs,
  { mount, path }: Place,
  from: number,
  limit: number,
  signal: AbortSignal,
): Promise<ToolResult> {
  const range = { from, to: from + Math.min(limit, mostBinaryBytes) - 1 }
  const file = await files.read(mount, path, { signal, ...(from === 0 ? {} : { range }) }).catch((error: unknown) => {
    if (isAppError(error) && error.code === objectErrors.rangeNotSatisfiable.row.code) return 'none' as const
    throw error
  })
  if (file === undefined) return noFile(`${mount}/${path}`)
  if (file === 'none') return failed(`The file has no byte ${from}.`)
  const { entry } = file
  const part = from === 0 ? await beginning(file.body, range.to + 1) : await buffer(file.body)
  const to = from + part.length
  const all = entry.bytes ?? to
  const more = to < all ? `; offset ${to} shows more` : ''
  return ok(
    `[Bytes ${from} to ${to} of ${all}, ${entry.contentType ?? 'of no known type'}, as base64${more}.]\n${part.toString('base64')}`,
  )
}

/** Reads the first `most` bytes. A range of an empty file would be refused, so the file is read without a range. */
async function beginning(body: AsyncIterable<Uint8Array>, most: number): Promise<Buffer> {
  const parts: Uint8Array[] = []
  let size = 0
  for await (const part of body) {
    parts.push(part)
    size += part.length
    if (size >= most) break
  }
  return Buffer.concat(parts).subarray(0, most)
}

const write = tool(
  {
    name: 'vfs_write',
    description:
      'Writes a file of the virtual file system, in place of the one that is there. Folders need not be made.',
    input: {
      path: pathOf('mount/folder/file'),
      content: { type: 'string', maxLength: mostWritten, description: 'All of the file.' },
      encoding: { type: 'string', enum: ['text', 'base64'], default: 'text', description: 'Of the content.' },
      overwrite: { type: 'boolean', default: true, description: 'False: fails where there is a file already.' },
    },
    required: ['path', 'content'],
  },
  async (files, input, { signal, sandbox }) => {
    const { mount, path } = filePlaceOf(input['path'])
    const isText = input['encoding'] === 'text'
    const body = isText ? Buffer.from(String(input['content'])) : decoded(String(input['content']))
    if (!body) return failed('The content is no base64.')
    const file = {
      body,
      contentType: contentTypeOf(path) ?? (isText ? 'text/plain; charset=utf-8' : 'application/octet-stream'),
      ...(input['overwrite'] === false ? { ifNoneMatch: '*' as const } : {}),
    }
    const entry = await files.write(mount, path, file, { signal }).catch((error: unknown) => {
      if (isAppError(error) && error.code === objectErrors.preconditionFailed.row.code) return undefined
      throw error
    })
    if (!entry) return failed(`There already is a file '${mount}/${path}'.`)
    const note = await sandbox?.settleFiles()
    const said = `'${mount}/${path}' is written: ${body.length} bytes.`
    return ok(note === undefined ? said : `${said}\n${note}`)
  },
)

/** Decodes base64, which may contain line ends. Undefined for invalid base64. */
function decoded(text: string): Buffer | undefined {
  const packed = text.replaceAll(/[\r\n]/g, '')
  return /^[A-Za-z0-9+/]*={0,2}$/.test(packed) && packed.length % 4 === 0 ? Buffer.from(packed, 'base64') : undefined
}

const list = tool(
  {
    name: 'vfs_list',
    description: `Lists a folder of the virtual file system, ${mostListed} entries at a time; without a path its mounts.`,
    input: {
      path: pathOf('mount/folder'),
      recursive: { type: 'boolean', default: false, description: 'All files below, and no folders.' },
      cursor: { type: 'string', maxLength: 2_000, description: 'As the list before gave it.' },
    },
  },
  async (files, input, { signal }) => {
    const place = placeOf(input['path'])
    if (!place) return ok(await mountsOf(files, signal))
    const { mount, path } = place
    const cursor = input['cursor'] === undefined ? {} : { cursor: String(input['cursor']) }
    const query = { signal, limit: mostListed, recursive: input['recursive'] === true, ...cursor }
    const { entries, cursor: next } = await files.list(mount, path, query)
    const shown = entries.filter((entry) => folderOf(`/${entry.path}`) === undefined)
    if (shown.length === 0 && next === undefined) return ok('[There are no files.]')
    const more = next === undefined ? [] : [`[There are more: cursor ${next}]`]
    return ok([...shown.map((entry) => lineOf(mount, entry)), ...more].join('\n'))
  },
)

const lineOf = (mount: string, { path, kind, bytes, updatedAt }: VfsEntry): string => {
  if (kind === 'folder') return `${mount}/${path}/`
  return `${mount}/${path} (${bytes ?? '?'} bytes${updatedAt === undefined ? '' : `, ${updatedAt}`})`
}

async function mountsOf(files: SessionVfs, signal: AbortSignal): Promise<string> {
  const mounts = await files.mounts({ signal })
  const lines = mounts.map(({ name, kind, readOnly, copyOnWrite }) => {
    const said = readOnly
      ? 'read-only'
      : copyOnWrite
        ? 'what you write stays in this session'
        : kind === 'scratch'
          ? 'of this session alone'
          : 'writable'
    return `${name}/ (${said})`
  })
  return lines.join('\n') || '[There are no mounts.]'
}

const search = tool(
  {
    name: 'vfs_search',
    description: 'Looks for a text in the names and the lines of files of the virtual file system.',
    input: {
      query: { type: 'string', minLength: 1, maxLength: 200, description: 'Upper and lower case are the same.' },
      path: pathOf('Only in this mount, or mount/folder.'),
      in: { type: 'string', enum: ['name', 'text', 'both'], default: 'both' },
      limit: { type: 'integer', minimum: 1, maximum: 200, default: 50 },
    },
    required: ['query'],
  },
  async (files, input, { signal }) => {
    const place = placeOf(input['path'])
    const query = {
      q: String(input['query']),
      in: input['in'] as 'name' | 'text' | 'both',
      limit: Number(input['limit']),
      ...(place ? { mount: place.mount, ...(place.path === '' ? {} : { path: place.path }) } : {}),
    }
    const { matches, complete } = await files.search(query, { signal })
    const lines = matches.map(({ mount, path, line, text }) =>
      line === undefined ? `${mount}/${path}` : `${mount}/${path}:${line}: ${text ?? ''}`,
    )
    const rest = complete ? [] : ['[There may be more: search a mount or a folder of it.]']
    return ok([...(lines.length > 0 ? lines : ['[Nothing was found.]']), ...rest].join('\n'))
  },
)

/** The file tools of agents. Each tool acts for the session that calls it, within that session's lease. */
export const fileTools: readonly PlatformTool[] = [list, read, search, write]

const usualLines = 2_000
/** A file with a NUL byte within its first 8 KiB is treated as binary. */
const beginningBytes = 8 * 1024
/** The most bytes that are read to find lines near the end of a file. */
const mostRead = 64 * 1024 * 1024

/** Lines of a stream, with a note on how to read on; undefined for a binary file. Reads no more than it needs. */
async function readText(
  body: AsyncIterable<Uint8Array>,
  skip: number,
  limit = usualLines,
): Promise<string | undefined> {
  const parts: Uint8Array[] = []
  let [size, line, position] = [0, 0, 0]
  let end: 'file' | 'lines' | 'bytes' | 'far' = 'file'
  reading: for await (const chunk of body) {
    if (position < beginningBytes && chunk.subarray(0, beginningBytes - position).includes(0)) return undefined
    position += chunk.length
    for (let at = 0; at < chunk.length;) {
      if (line >= skip + limit) {
        end = 'lines'
        break reading
      }
      const newline = chunk.indexOf(0x0a, at)
      const next = newline < 0 ? chunk.length : newline + 1
      if (line >= skip) {
        const part = chunk.subarray(at, Math.min(next, at + mostShownBytes - size))
        parts.push(part)
        size += part.length
        if (part.length < next - at) {
          end = 'bytes'
          break reading
        }
      }
      if (newline >= 0) line++
      at = next
    }
    if (position >= mostRead) {
      end = 'far'
      break
    }
  }
  const bytes = end === 'file' ? Buffer.concat(parts) : wholeCharacters(Buffer.concat(parts))
  return isUtf8(bytes) ? withNote(bytes.toString('utf8'), skip, end) : undefined
}

function withNote(text: string, skipped: number, end: 'file' | 'lines' | 'bytes' | 'far'): string {
  if (end === 'far' && text === '')
    return `[The first ${mostRead / 1024 / 1024} MiB have no more than ${skipped} lines: read on by bytes, as base64.]`
  if (text === '') return skipped === 0 ? '[The file is empty.]' : `[The file has no more than ${skipped} lines.]`
  if (end === 'file') return text
  const whole = text.endsWith('\n')
  const lines = text.split('\n').length - 1
  const note =
    end === 'lines' || whole
      ? `The file goes on: offset ${skipped + lines} shows more.`
      : lines > 0
        ? `Cut in line ${skipped + lines + 1}: offset ${skipped + lines} begins with it.`
        : `Cut in line ${skipped + 1}, which is longer than can be shown: read it by bytes, as base64.`
  return `${text}${whole ? '' : '\n'}[${note}]`
}
