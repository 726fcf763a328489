import { randomUUID } from 'node:crypto'
import { type FileHandle, mkdir, open, readdir, rename, rm, rmdir, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { Readable } from 'node:stream'
import { isAppError } from '#kernel'
import {
  lastCharacter,
  type NewObject,
  type ObjectBackend,
  objectErrors,
  type ObjectInfo,
  type ObjectPage,
  type ObjectQuery,
  type OpenObject,
  type WriteCondition,
} from '#contracts/object-store'
import { Turns } from '#kit/turns'
import { namesOf } from './names.ts'
import { Listings, Walk } from './listings.ts'

/** The folder for uploads, next to the folders of tenants, whose names begin with another character. */
const incoming = '.incoming'
/** Files older than this many milliseconds were left by a process that died. */
const leftOverMs = 24 * 60 * 60 * 1_000

/** Objects as files of one folder, used by one process or several. When `put` or `remove` has resolved, the change survives a loss of power. */
export class DiskBackend implements ObjectBackend {
  readonly #dir: string
  readonly #listings = new Listings()
  /** Serializes the condition checks and writes of each key. */
  readonly #turns = new Turns()

  constructor(dir: string) {
    this.#dir = dir
  }

  /** Deletes unfinished files of dead processes, namely those older than any upload may take. */
  async tidy(olderThanMs = leftOverMs): Promise<void> {
    const folder = join(this.#dir, incoming)
    const names = await readdir(folder).catch(() => [])
    for (const name of names) {
      const path = join(folder, name)
      const found = await stat(path).catch(() => undefined)
      if (found && Date.now() - found.mtimeMs >= olderThanMs) await rm(path, { force: true })
    }
  }

  put(tenantId: string, key: string, object: NewObject) {
    return told(async () => {
      const temporary = join(this.#dir, incoming, randomUUID())
      await mkdir(dirname(temporary), { recursive: true, mode: 0o700 })
      try {
        const info = await write(temporary, key, object)
        const replaced = await this.#inTurn(tenantId, key, async (path) => {
          const before = await infoOf(path)
          if (!holds(object.when, before)) throw objectErrors.preconditionFailed()
          await this.#moveTo(path, temporary)
          return before?.bytes
        })
        return { info, replaced }
      } catch (error) {
        await rm(temporary, { force: true })
        throw error
      }
    })
  }

  open(tenantId: string, key: string): Promise<OpenObject | undefined> {
    return told(async () => {
      const opened = await openFile(this.#pathOf(tenantId, key))
      if (!opened) return undefined
      const { file, info } = opened
      return {
        info,
        read: async ({ from, to } = { from: 0, to: info.bytes - 1 }) => {
          if (to >= from) return file.createReadStream({ start: from, end: to, highWaterMark: 256 * 1024 })
          await file.close()
          return Readable.from([])
        },
        close: () => file.close(),
      }
    })
  }

  list(tenantId: string, { prefix, after, limit, folders }: ObjectQuery): Promise<ObjectPage> {
    return told(async () => {
      const walk = new Walk(this.#listings, this.#folderOf(tenantId), prefix, after)
      const paths: string[] = []
      const prefixes: string[] = []
      let last = ''
      for await (const { key, path } of walk.files()) {
        if (paths.length + prefixes.length === limit) return { objects: await infosOf(paths), prefixes, next: last }
        const end = folders ? key.indexOf('/', prefix.length) + 1 : 0
        if (end > 0) {
          prefixes.push(key.slice(0, end))
          last = key.slice(0, end) + lastCharacter
          walk.skipTo(last)
        } else {
          paths.push(path)
          last = key
        }
      }
      return { objects: await infosOf(paths), prefixes }
    })
  }

  remove(tenantId: string, key: string, ifMatch?: string, signal?: AbortSignal): Promise<number | undefined> {
    return told(() =>
      this.#inTurn(tenantId, key, async (path) => {
        const before = await infoOf(path)
        if (!before) return undefined
        if (ifMatch !== undefined && !holds({ ifMatch }, before)) throw objectErrors.preconditionFailed()
        if (signal?.aborted) throw objectErrors.storageUnavailable({ cause: signal.reason })
        await rm(path, { force: true })
        await syncFolder(dirname(path))
        await removeEmpty(dirname(path), this.#dir)
        return before.bytes
      }),
    )
  }

  removeAll(tenantId: string, prefix: string, most: number, signal?: AbortSignal) {
    return told(async () => {
      let objects = 0
      let bytes = 0
      try {
        for await (const { key } of new Walk(this.#listings, this.#folderOf(tenantId), prefix, '').files()) {
          if (objects === most) return { objects, bytes, more: true }
          const gone = await this.remove(tenantId, key, undefined, signal)
          if (gone === undefined) continue
          objects++
          bytes += gone
        }
      } catch (error) {
        if (objects === 0) throw error
        return { objects, bytes, more: true }
      }
      return { objects, bytes, more: false }
    })
  }

  use(tenantId: string) {
    return told(async () => {
      let objects = 0
      let bytes = 0
      for await (const { path } of new Walk(this.#listings, this.#folderOf(tenantId), '', '').files()) {
        const info = await infoOf(path)
        if (!info) continue
        objects++
        bytes += info.bytes
      }
      return { objects, bytes }
    })
  }

  #folderOf(tenantId: string): string {
    return join(this.#dir, ...namesOf(`${tenantId}/`).slice(0, -1))
  }
  #pathOf(tenantId: string, key: string): string {
    return join(this.#folderOf(tenantId), ...namesOf(key))
  }

  #inTurn<T>(tenantId: string, key: string, work: (path: string) => Promise<T>): Promise<T> {
    const path = this.#pathOf(tenantId, key)
    return this.#turns.take(path, () => work(path))
  }

  /** An empty folder may be removed between its creation and the rename, so the move is retried. */
  async #moveTo(path: string, temporary: string): Promise<void> {
    for (let left = 20; ; left--) {
      const made = await mkdir(dirname(path), { recursive: true, mode: 0o700 })
      try {
        await rename(temporary, path)
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'ENOENT' || left === 0) throw error
        continue
      }
      return made === undefined ? syncFolder(dirname(path)) : syncFolders(dirname(path), this.#dir)
    }
  }
}

/** The most files that are opened at the same time. */
const opensAtOnce = 16

/** The metadata of objects. An object that was deleted meanwhile is left out. */
async function infosOf(paths: readonly string[]): Promise<ObjectInfo[]> {
  const infos: ObjectInfo[] = []
  for (let from = 0; from < paths.length; from += opensAtOnce) {
    for (const info of await Promise.all(paths.slice(from, from + opensAtOnce).map(infoOf))) if (info) infos.push(info)
  }
  return infos
}

async function write(path: string, key: string, { body, sha256, contentType }: NewObject): Promise<ObjectInfo> {
  const file = await open(path, 'wx', 0o600)
  try {
    let bytes = 0
    for await (const chunk of body) {
      await writeAll(file, chunk)
      bytes += chunk.length
    }
    const known = { key, contentType, sha256: sha256(), updatedAt: new Date().toISOString() }
    await writeAll(file, trailerOf(known))
    await file.sync()
    return { ...known, bytes, etag: known.sha256 }
  } finally {
    await file.close()
  }
}

/** Writes in a loop, because a write may write fewer bytes than requested without an error, for example on a disk that is nearly full. */
async function writeAll(file: FileHandle, chunk: Uint8Array): Promise<void> {
  for (let from = 0; from < chunk.length;) {
    const { bytesWritten } = await file.write(chunk, from)
    from += bytesWritten
  }
}

const holds = ({ ifMatch, ifNoneMatch }: WriteCondition, before: ObjectInfo | undefined): boolean =>
  !(ifNoneMatch && before) &&
  (ifMatch === undefined || (before !== undefined && (ifMatch === '*' || ifMatch === before.etag)))

const full = new Set(['ENOSPC', 'EDQUOT'])

/** Translates errors of the disk into errors for callers. */
async function told<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (cause) {
    const { code, syscall } = cause as NodeJS.ErrnoException
    if (isAppError(cause) || syscall === undefined) throw cause
    throw full.has(code ?? '') ? objectErrors.storageFull({ cause }) : objectErrors.storageUnavailable({ cause })
  }
}

/** The file layout: the content, its metadata as JSON, the length of the metadata in four bytes, and this mark. A single file needs only one rename. */
const mark = Buffer.from('AOobj1')
const footBytes = 4 + mark.length
/** The longest trailer: a key has at most 1024 bytes, each of which may take six as JSON. */
const mostTrailer = 16 * 1024

type Known = Pick<ObjectInfo, 'key' | 'contentType' | 'updatedAt'> & { readonly sha256: string }

export function trailerOf(known: Known): Buffer {
  const text = Buffer.from(JSON.stringify(known))
  const length = Buffer.alloc(4)
  length.writeUInt32BE(text.length)
  return Buffer.concat([text, length, mark])
}

/** Opens the file of an object. Undefined when there is none, or when another program wrote it. */
async function openFile(path: string): Promise<{ file: FileHandle; info: ObjectInfo } | undefined> {
  const file = await open(path, 'r').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT' || error.code === 'ENOTDIR') return undefined
    throw error
  })
  if (!file) return undefined
  try {
    const info = await readInfo(file)
    if (info) return { file, info }
    await file.close()
    return undefined
  } catch (error) {
    await file.close()
    throw error
  }
}

async function infoOf(path: string): Promise<ObjectInfo | undefined> {
  const opened = await openFile(path)
  await opened?.file.close()
  return opened?.info
}

async function readInfo(file: FileHandle): Promise<ObjectInfo | undefined> {
  const { size } = await file.stat()
  const tail = Buffer.alloc(Math.min(size, mostTrailer))
  const { bytesRead } = await file.read(tail, 0, tail.length, size - tail.length)
  if (bytesRead < footBytes || !tail.subarray(-mark.length).equals(mark)) return undefined
  const length = tail.readUInt32BE(tail.length - footBytes)
  if (length + footBytes > tail.length) return undefined
  const known = JSON.parse(tail.toString('utf8', tail.length - footBytes - length, tail.length - footBytes)) as Known
  return { ...known, bytes: size - footBytes - length, etag: known.sha256 }
}

/** Makes renames into a folder and removals from it survive a loss of power. */
async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, 'r').catch((error: NodeJS.ErrnoException) => {
    // Another process has removed the folder because it was empty.
    if (error.code === 'ENOENT') return undefined
    throw error
  })
  try {
    await folder?.sync()
  } finally {
    await folder?.close()
  }
}

/** Syncs all folders from `path` up to `root`, because some of them are new. */
async function syncFolders(path: string, root: string): Promise<void> {
  for (let at = path; ; at = dirname(at)) {
    await syncFolder(at)
    if (at === root || at === dirname(at)) return
  }
}

/** Removes `path` and the folders above it, below `root`, for as long as they are empty. */
async function removeEmpty(path: string, root: string): Promise<void> {
  for (let at = path; at !== root && at !== dirname(at); at = dirname(at)) {
    try {
      await rmdir(at)
    } catch {
      // The folder is not empty, or gone: there is nothing to remove.
      return
    }
  }
}
