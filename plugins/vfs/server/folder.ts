import { randomUUID } from 'node:crypto'
import { type BigIntStats, constants } from 'node:fs'
import { type FileHandle, lstat, mkdir, open, opendir, rename, rm, rmdir, unlink } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { isAppError } from '#kernel'
import { type ByteRange, maxKeyBytes, type NewObject, objectErrors, type WriteCondition } from '#contracts/object-store'
import { asExecutable, isExecutable, isVfsPath, type VfsEntry, vfsErrors } from '#contracts/vfs'
import { contentTypeOf } from '#kit/files'
import { belowOf, type FileInfo, First, isBefore, type OpenFile, placeOf, type Tree, type Walk } from './tree.ts'
import type { Counts } from './usage.ts'

const { O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_WRONLY } = constants

/** Folder of incomplete uploads. It is inside the mount, because a rename works only within one file system, and is not shown. */
export const incoming = '.agent-orc-incoming'

/** The most levels that a path leads through: what is deeper no tenant reads, writes or deletes. */
const deepest = maxKeyBytes / 2
/** No file system of Linux takes longer names, in bytes. */
const longestName = 255

/**
 * A folder of this machine. Each segment of a path is opened below the previous one without following links. So no link leads out of the folder,
 * even one that is created during the walk. Only plain files and folders are shown.
 */
export class FolderTree implements Tree {
  readonly #root: string
  readonly #atOnce: number
  /** Writes and deletions run one after another, so that a condition still holds when its write happens. */
  #turn: Promise<unknown> = Promise.resolve()

  /** A folder with more than `atOnce` entries is read in several passes, each of which returns the next entries in order. */
  constructor(root: string, atOnce = 4_096) {
    this.#root = root
    this.#atOnce = atOnce
  }

  /** Removes incomplete files of a process that died. */
  async tidy(): Promise<void> {
    const root = await open(this.#root, O_RDONLY | O_DIRECTORY)
    try {
      await rm(`${pathOf(root)}/${incoming}`, { recursive: true, force: true })
    } finally {
      await root.close()
    }
  }

  /** Counts the files below the folder and their bytes, also those that are being written. */
  use(): Promise<Counts> {
    return told(async () => {
      const counts = { bytes: 0, entries: 0 }
      const root = await this.#enter([])
      if (root) await addUp(root, counts, deepest)
      return counts
    })
  }

  async *walk(folder: string, walk: Walk): AsyncGenerator<VfsEntry> {
    let from: string | undefined
    do {
      const { entries, more } = await told(() => this.#firstOf(folder, walk, from))
      for (const entry of entries) {
        if (entry.kind === 'file') {
          const info = await this.#infoOf(entry.path)
          if (info) yield info
        } else if (walk.recursive) yield* this.walk(entry.path, walk)
        else if (await this.#hasFiles(entry.path)) yield entry
      }
      from = more ? placeOf(entries.at(-1)!) : undefined
    } while (from !== undefined)
  }

  open(path: string): Promise<OpenFile | undefined> {
    return told(async () => {
      const file = await this.#within(path, (folder, name) => openFile(folder, name))
      if (!file) return undefined
      const info = infoOf(path, await file.stat({ bigint: true }))
      return {
        info,
        close: () => file.close(),
        async read({ from, to }: ByteRange = { from: 0, to: info.bytes - 1 }) {
          if (to >= from) return file.createReadStream({ start: from, end: to, highWaterMark: 256 * 1024 })
          await file.close()
          return Readable.from([])
        },
      }
    })
  }

  put(path: string, { body, contentType, when }: NewObject) {
    return told(async () => {
      if (isHidden(path)) throw vfsErrors.invalidPath()
      // Before any folder is made: nothing would delete those above it.
      if (path.split('/').some((name) => Buffer.byteLength(name) > longestName)) throw nameTooLong()
      const root = await this.#enter([])
      if (!root) throw vfsErrors.mountUnavailable({ message: 'The folder of this mount is not there.' })
      try {
        await mkdir(`${pathOf(root)}/${incoming}`, { mode: 0o700 }).catch(unless('EEXIST'))
        const waiting = await folderIn(root, incoming)
        if (!waiting) throw vfsErrors.mountUnavailable({ message: `${incoming} of this mount is no folder.` })
        const temporary = `${pathOf(waiting)}/${randomUUID()}`
        try {
          await write(temporary, body, isExecutable(contentType) ? 0o755 : 0o644)
          return await this.#inTurn(() => this.#moveTo(path, temporary, when))
        } catch (error) {
          await rm(temporary, { force: true })
          throw error
        } finally {
          await waiting.close()
        }
      } finally {
        await root.close()
      }
    })
  }

  remove(path: string, ifMatch?: string): Promise<number | undefined> {
    return told(() =>
      this.#inTurn(async () => {
        const before = await this.#infoOf(path)
        if (!before) return undefined
        if (ifMatch !== undefined && !holds({ ifMatch }, before)) throw objectErrors.preconditionFailed()
        await this.#within(path, async (folder, name) => {
          await unlink(`${pathOf(folder)}/${name}`)
          await folder.sync()
        })
        await this.#removeEmpty(path.split('/').slice(0, -1))
        return before.bytes
      }),
    )
  }

  /** The next entries of a folder in the walk. With `from`, only entries after that place. */
  async #firstOf(folder: string, { after, recursive }: Walk, from: string | undefined) {
    const at = await this.#enter(folder === '' ? [] : folder.split('/'))
    const first = new First(this.#atOnce)
    if (!at) return first.taken()
    try {
      // The folder is read in parts, and the event loop is released between them.
      for await (const one of await opendir(pathOf(at), { bufferSize: 512 })) {
        if (!one.isFile() && !one.isDirectory()) continue
        const entry: VfsEntry = { path: belowOf(folder) + one.name, kind: one.isFile() ? 'file' : 'folder' }
        const place = placeOf(entry)
        const within = recursive && entry.kind === 'folder' && after.startsWith(place)
        if (!within && !isBefore(after, place)) continue
        if (from !== undefined && !isBefore(from, place)) continue
        if (isVfsPath(entry.path) && !isHidden(entry.path)) first.offer(entry)
      }
    } finally {
      await at.close()
    }
    return first.taken()
  }

  async #hasFiles(folder: string): Promise<boolean> {
    for await (const _ of this.walk(folder, { after: '', recursive: true, limit: 1 })) return true
    return false
  }

  async #infoOf(path: string): Promise<FileInfo | undefined> {
    const found = await this.open(path)
    await found?.close()
    return found?.info
  }

  async #moveTo(path: string, temporary: string, when: WriteCondition) {
    const before = await this.#infoOf(path)
    if (!holds(when, before)) throw objectErrors.preconditionFailed()
    const steps = path.split('/')
    const name = steps.pop()!
    const folder = await this.#enter(steps, true)
    if (!folder) throw vfsErrors.isFile()
    try {
      await rename(temporary, `${pathOf(folder)}/${name}`)
      await folder.sync()
    } finally {
      await folder.close()
    }
    const info = await this.#infoOf(path)
    if (!info) throw objectErrors.storageUnavailable({ message: 'The file was replaced by something that is no file.' })
    return { info, replaced: before?.bytes }
  }

  /** Opens the folder at the end of the steps. With `make`, missing folders are created. Undefined if a folder is missing. */
  async #enter(steps: readonly string[], make = false): Promise<FileHandle | undefined> {
    let at = await open(this.#root, O_RDONLY | O_DIRECTORY)
    for (const step of steps) {
      const above = at
      const entering = async (): Promise<FileHandle | undefined> => {
        if (make) await mkdir(`${pathOf(above)}/${step}`, { mode: 0o755 }).catch(unless('EEXIST'))
        return folderIn(above, step)
      }
      const next = await entering().finally(() => above.close())
      if (!next) return undefined
      at = next
    }
    return at
  }

  async #within<T>(path: string, work: (folder: FileHandle, name: string) => Promise<T>): Promise<T | undefined> {
    if (isHidden(path)) return undefined
    const steps = path.split('/')
    const name = steps.pop()!
    const folder = await this.#enter(steps)
    try {
      return folder && (await work(folder, name))
    } finally {
      await folder?.close()
    }
  }

  async #removeEmpty(steps: readonly string[]): Promise<void> {
    for (let left = steps; left.length > 0; left = left.slice(0, -1)) {
      const gone = await this.#within(left.join('/'), (folder, name) =>
        rmdir(`${pathOf(folder)}/${name}`).then(
          () => true,
          () => false,
        ),
      )
      if (!gone) return
    }
  }

  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const mine = this.#turn.then(work)
    this.#turn = mine.catch(() => {})
    return mine
  }
}

/** A path that reaches an open descriptor even if the descriptor's name leads elsewhere by now. Needs Linux, as mounts of folders do. */
const pathOf = ({ fd }: FileHandle): string => `/proc/self/fd/${fd}`
export const foldersWork = process.platform === 'linux'

const isHidden = (path: string): boolean => path === incoming || path.startsWith(`${incoming}/`)

const absent = new Set(['ENOENT', 'ENOTDIR', 'ELOOP', 'ENXIO'])
const isAbsent = (error: unknown): boolean => absent.has((error as NodeJS.ErrnoException).code ?? '')

const unless = (code: string) => (error: unknown) => {
  if ((error as NodeJS.ErrnoException).code !== code) throw error
}

async function folderIn(folder: FileHandle, name: string): Promise<FileHandle | undefined> {
  try {
    return await open(`${pathOf(folder)}/${name}`, O_RDONLY | O_DIRECTORY | O_NOFOLLOW)
  } catch (error) {
    if (isAbsent(error)) return undefined
    throw error
  }
}

/** Adds up what is in a folder, in no order, to this depth, and closes it. What the server may not read is left out. */
async function addUp(folder: FileHandle, counts: Counts, depth: number): Promise<void> {
  try {
    for await (const one of await opendir(pathOf(folder), { bufferSize: 512 })) {
      const below = one.isDirectory() && depth > 0 && (await folderIn(folder, one.name).catch(unless('EACCES')))
      if (below) await addUp(below, counts, depth - 1)
      if (!one.isFile()) continue
      counts.entries++
      counts.bytes += (await lstat(`${pathOf(folder)}/${one.name}`).catch(unless('ENOENT')))?.size ?? 0
    }
  } finally {
    await folder.close()
  }
}

/** Opens a plain file. O_NONBLOCK keeps the open from waiting, as it would on a pipe. */
async function openFile(folder: FileHandle, name: string): Promise<FileHandle | undefined> {
  try {
    const file = await open(`${pathOf(folder)}/${name}`, O_RDONLY | O_NOFOLLOW | O_NONBLOCK)
    if ((await file.stat()).isFile()) return file
    await file.close()
    return undefined
  } catch (error) {
    if (isAbsent(error)) return undefined
    throw error
  }
}

const typeOf = (path: string): string => contentTypeOf(path) ?? 'application/octet-stream'
const infoOf = (path: string, { size, mtimeNs, ino, mode }: BigIntStats): FileInfo => ({
  path,
  kind: 'file',
  bytes: Number(size),
  contentType: mode & 0o100n ? asExecutable(typeOf(path)) : typeOf(path),
  updatedAt: new Date(Number(mtimeNs / 1_000_000n)).toISOString(),
  etag: `${mtimeNs.toString(36)}-${size.toString(36)}-${ino.toString(36)}`,
})

const holds = ({ ifMatch, ifNoneMatch }: WriteCondition, before: FileInfo | undefined): boolean =>
  !(ifNoneMatch && before) &&
  (ifMatch === undefined || (before !== undefined && (ifMatch === '*' || ifMatch === before.etag)))

async function write(path: string, body: AsyncIterable<Uint8Array>, mode: number): Promise<void> {
  const file = await open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode)
  try {
    // A write may take fewer bytes than it was given without an error, so the rest is written again.
    for await (const chunk of body)
      for (let from = 0; from < chunk.length;) from += (await file.write(chunk, from)).bytesWritten
    await file.sync()
  } finally {
    await file.close()
  }
}

const nameTooLong = (): Error =>
  vfsErrors.invalidPath({ message: 'A segment of the path is longer than the file system takes.' })

/** Maps errors of the file system to errors for callers. */
async function told<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (cause) {
    const { code = '', syscall } = cause as NodeJS.ErrnoException
    if (isAppError(cause) || syscall === undefined) throw cause
    if (code === 'EISDIR') throw vfsErrors.isFolder({ cause })
    if (code === 'ENAMETOOLONG') throw nameTooLong()
    if (code === 'ENOSPC' || code === 'EDQUOT') throw objectErrors.storageFull({ cause })
    if (code === 'EACCES' || code === 'EPERM' || code === 'EROFS') {
      throw vfsErrors.mountUnavailable({ message: 'The server may not do this in the folder of the mount.', cause })
    }
    throw vfsErrors.mountUnavailable({ message: 'The folder of the mount cannot be used.', retryable: true, cause })
  }
}
