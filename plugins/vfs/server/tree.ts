import { Readable } from 'node:stream'
import {
  lastCharacter,
  mostObjectsAtOnce,
  type NewObject,
  type ObjectBackend,
  objectErrors,
  type ObjectInfo,
  type OpenObject,
} from '#contracts/object-store'
import { isVfsPath, type VfsEntry, type VfsMatch, type VfsMatches, type VfsSearchQuery } from '#contracts/vfs'

export interface FileInfo extends VfsEntry {
  readonly kind: 'file'
  readonly bytes: number
  readonly contentType: string
  readonly updatedAt: string
  readonly etag: string
}

export type OpenFile = OpenObject<FileInfo>

export interface Walk {
  /** Only entries after this place are returned, see `placeOf`; '' for all. */
  readonly after: string
  /** True: all files below the folder, and no folders. */
  readonly recursive: boolean
  /** The approximate number of entries that the caller wants. */
  readonly limit: number
}

/**
 * Files below one root. The caller must have checked the paths. A file exists completely or not at all. Conditions and errors are those of
 * `ObjectBackend`.
 */
export interface Tree {
  /** The entries of a folder, ordered by place. */
  walk(folder: string, walk: Walk): AsyncIterable<VfsEntry>
  open(path: string): Promise<OpenFile | undefined>
  put(path: string, file: NewObject): Promise<{ info: FileInfo; replaced: number | undefined }>
  /** Removes a file. Resolves to the bytes that the file had; undefined if there is none. */
  remove(path: string, ifMatch?: string): Promise<number | undefined>
}

/** The position of an entry in a list. A folder gets a slash, so that it stands where its files would stand. */
export const placeOf = ({ kind, path }: VfsEntry): string => (kind === 'folder' ? `${path}/` : path)
/** Compares places by the bytes of their UTF-8. */
export const isBefore = (a: string, b: string): boolean => a !== b && Buffer.compare(Buffer.from(a), Buffer.from(b)) < 0
export const belowOf = (folder: string): string => (folder === '' ? '' : `${folder}/`)

export async function anyBelow(tree: Tree, folder: string): Promise<boolean> {
  for await (const _ of tree.walk(folder, { after: '', recursive: true, limit: 1 })) return true
  return false
}

const fileOf = (path: string, { bytes, contentType, updatedAt, etag }: ObjectInfo): FileInfo => ({
  path,
  kind: 'file',
  bytes,
  contentType,
  updatedAt,
  etag,
})

/** The most consecutive pages whose keys are all no paths. */
const mostBare = 100
const endless = () =>
  objectErrors.storageUnavailable({
    message: 'The store of the mount lists its objects in no order, or too many of them are not files.',
  })

/** The objects of a tenant below a prefix, as files. Keys that are not valid paths are not shown. */
export class ObjectTree implements Tree {
  readonly #objects: Pick<ObjectBackend, 'put' | 'open' | 'list' | 'remove'>
  readonly #tenantId: string
  readonly #prefix: string

  constructor(objects: Pick<ObjectBackend, 'put' | 'open' | 'list' | 'remove'>, tenantId: string, prefix: string) {
    this.#objects = objects
    this.#tenantId = tenantId
    this.#prefix = prefix
  }

  async *walk(folder: string, { after, recursive, limit }: Walk): AsyncGenerator<VfsEntry> {
    const prefix = this.#prefix + belowOf(folder)
    const query = { prefix, limit: Math.min(limit + 1, mostObjectsAtOnce), folders: !recursive }
    let bare = 0
    let at: string | undefined = after === '' ? '' : this.#prefix + after + (after.endsWith('/') ? lastCharacter : '')
    while (at !== undefined) {
      const page: Awaited<ReturnType<ObjectBackend['list']>> = await this.#objects.list(this.#tenantId, {
        ...query,
        ...(bare > 0 ? { limit: mostObjectsAtOnce } : {}),
        after: at,
      })
      const entries: VfsEntry[] = [
        ...page.objects.map((info) => fileOf(info.key.slice(this.#prefix.length), info)),
        ...page.prefixes.map((one): VfsEntry => ({ path: one.slice(this.#prefix.length, -1), kind: 'folder' })),
      ].filter(({ path }) => isVfsPath(path))
      yield* entries.sort((a, b) => (isBefore(placeOf(a), placeOf(b)) ? -1 : 1))
      // The bucket may belong to a tenant, so its list must not be able to go on for ever.
      bare = entries.length > 0 ? 0 : bare + 1
      if (bare > mostBare || (page.next !== undefined && !isBefore(at, page.next))) throw endless()
      at = page.next
    }
  }

  async open(path: string): Promise<OpenFile | undefined> {
    const found: OpenObject | undefined = await this.#objects.open(this.#tenantId, this.#prefix + path)
    if (!found) return undefined
    return { info: fileOf(path, found.info), read: (range) => found.read(range), close: () => found.close() }
  }

  async put(path: string, file: NewObject) {
    const { info, replaced } = await this.#objects.put(this.#tenantId, this.#prefix + path, file)
    return { info: fileOf(path, info), replaced }
  }

  remove(path: string, ifMatch?: string): Promise<number | undefined> {
    return this.#objects.remove(this.#tenantId, this.#prefix + path, ifMatch)
  }
}

const ofNothing = 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855'
export const emptyFile = (): NewObject => ({
  body: Readable.from([]),
  sha256: () => ofNothing,
  contentType: 'application/octet-stream',
  when: {},
})

interface Placed {
  readonly entry: VfsEntry
  readonly place: Buffer
}

/** Picks the first entries of many, ordered by place. It holds at most twice as many entries as it picks. */
export class First {
  readonly #most: number
  #held: Placed[] = []
  /** The first place that is too late to be picked; undefined while there is none. */
  #end: Buffer | undefined

  constructor(most: number) {
    this.#most = most
  }

  offer(entry: VfsEntry): void {
    const place = Buffer.from(placeOf(entry))
    if (this.#end && place.compare(this.#end) >= 0) return
    this.#held.push({ entry, place })
    if (this.#held.length >= 2 * this.#most) this.#cut()
  }

  taken(): { entries: VfsEntry[]; more: boolean } {
    this.#cut()
    return { entries: this.#held.map(({ entry }) => entry), more: this.#end !== undefined }
  }

  #cut(): void {
    this.#held.sort((a, b) => a.place.compare(b.place))
    if (this.#held.length <= this.#most) return
    this.#end = this.#held[this.#most]!.place
    this.#held.length = this.#most
  }
}

/** The most files, bytes and milliseconds of one search. */
const mostFiles = 10_000
const mostBytes = 64 * 1024 * 1024
const mostMs = 5_000
/** Bytes of one file that are searched. */
const mostOfFile = 4 * 1024 * 1024
/** A file with a NUL byte within its first 8 KiB is treated as binary. */
const beginning = 8 * 1024
const shownCharacters = 200
/** A line with more characters is searched in parts. Joining the whole line at each chunk would take quadratic time. */
const longestLine = 64 * 1024

/** Searches trees one after another, within bounds of files, bytes and time. */
export async function search(trees: ReadonlyMap<string, Tree>, query: VfsSearchQuery): Promise<VfsMatches> {
  const { q, in: where = 'both', path = '', limit = 50 } = query
  const wanted = q.toLowerCase()
  const left = { files: mostFiles, bytes: mostBytes, until: performance.now() + mostMs }
  const matches: VfsMatch[] = []
  for (const [mount, tree] of trees) {
    for await (const entry of tree.walk(path, { after: '', recursive: true, limit: 1_000 })) {
      if (matches.length === limit || left.files-- === 0 || left.bytes <= 0 || performance.now() > left.until) {
        return { matches, complete: false }
      }
      const info = entry as FileInfo
      const found = { mount, path: info.path, bytes: info.bytes }
      const line = where === 'name' ? undefined : await lineWith(tree, info, wanted, left)
      if (line) matches.push({ ...found, ...line })
      else if (where !== 'text' && info.path.toLowerCase().includes(wanted)) matches.push(found)
    }
  }
  return { matches, complete: true }
}

/** The first line of a file that has the text. */
async function lineWith(
  tree: Tree,
  { path, bytes }: FileInfo,
  wanted: string,
  left: { bytes: number },
): Promise<{ line: number; text: string } | undefined> {
  const file = await tree.open(path)
  if (!file) return undefined
  if (bytes === 0) return void (await file.close())
  const body = await file.read({ from: 0, to: Math.min(bytes, mostOfFile) - 1 })
  try {
    const decoder = new TextDecoder('utf-8')
    let [line, rest, first] = [1, '', true]
    for await (const chunk of body as Readable & AsyncIterable<Uint8Array>) {
      left.bytes -= chunk.length
      if (first && chunk.subarray(0, beginning).includes(0)) return undefined
      first = false
      const lines = (rest + decoder.decode(chunk, { stream: true })).split('\n')
      rest = lines.pop()!
      const at = lines.findIndex((one) => one.toLowerCase().includes(wanted))
      if (at >= 0) return { line: line + at, text: shown(lines[at]!, wanted) }
      line += lines.length
      if (rest.length <= longestLine) continue
      if (rest.toLowerCase().includes(wanted)) return { line, text: shown(rest, wanted) }
      // The searched text may begin at the end of this part, so the end is kept.
      rest = rest.slice(-2 * wanted.length)
    }
    return rest.toLowerCase().includes(wanted) ? { line, text: shown(rest, wanted) } : undefined
  } finally {
    body.destroy()
  }
}

/** The part of a line around the match. */
function shown(line: string, wanted: string): string {
  const from = Math.max(0, line.toLowerCase().indexOf(wanted) - shownCharacters / 2)
  return line
    .slice(from, from + shownCharacters)
    .trim()
    .toWellFormed()
}
