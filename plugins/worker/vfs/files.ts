import { randomBytes } from 'node:crypto'
import { constants } from 'node:fs'
import { chmod, lstat, mkdir, open, readFile, rename, rm, rmdir, unlink } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { Readable } from 'node:stream'
import { folderOf } from '#contracts/vfs'
import { type LocalFile, localFile, stampOf } from './scan.ts'

/** A downloaded file that is not yet in its place. */
export interface Fetched {
  readonly file: string
  readonly etag: string
  readonly executable: boolean
}

/** The folder of a mount in the sandbox. Files are replaced atomically, and no link is followed where a file should be. */
export class MountFolder {
  readonly folder: string
  /** A folder for downloads. It is on the same disk, so files can be renamed; it is no mount, because names of mounts do not start with a dot. */
  readonly #incoming: string

  constructor(root: string, mount: string) {
    this.folder = join(root, mount)
    this.#incoming = join(root, '.incoming')
  }

  find(path: string): Promise<LocalFile | undefined> {
    return localFile(join(this.folder, path))
  }
  /** Writes a download beside the mounts. Rejects when it has more than `most` bytes. */
  async fetch(
    body: AsyncIterable<Uint8Array>,
    most: number,
    of: Pick<Fetched, 'etag' | 'executable'>,
  ): Promise<Fetched> {
    await mkdir(this.#incoming, { recursive: true })
    const file = join(this.#incoming, randomBytes(8).toString('hex'))
    const handle = await open(file, 'wx', 0o644)
    try {
      let bytes = 0
      for await (const part of body) {
        bytes += part.length
        if (bytes > most) throw new Error('a file is larger than it was said to be')
        await handle.writeFile(part)
      }
      return { file, ...of }
    } catch (error) {
      await rm(file, { force: true })
      throw error
    } finally {
      await handle.close()
    }
  }
  drop({ file }: Fetched): Promise<void> {
    return rm(file, { force: true })
  }
  /** Moves a download to its place. Undefined when the file there is not the expected one any more: then that file stays. */
  async place(
    fetched: Fetched,
    path: string,
    here: LocalFile | undefined,
    readOnly: boolean,
  ): Promise<LocalFile | undefined> {
    const target = join(this.folder, path)
    const folder = folderOf(target)
    if (folder !== undefined) {
      await this.drop(fetched)
      await mkdir(folder, { recursive: true })
      return this.find(path)
    }
    try {
      const there = await lstat(target, { bigint: true }).catch(() => undefined)
      if ((there && stampOf(there)) !== here?.stamp) {
        await this.drop(fetched)
        return undefined
      }
      // A writer outside of a sandbox may not know that a file is executable, so an executable file in the sandbox stays executable.
      const executable = fetched.executable ? 0o111 : there ? Number(there.mode) & 0o111 : 0
      if (readOnly || executable) await chmod(fetched.file, (readOnly ? 0o444 : 0o644) | executable)
      await rename(fetched.file, target).catch(async (error: NodeJS.ErrnoException) => {
        if (error.code !== 'ENOENT') throw error
        await mkdir(dirname(target), { recursive: true })
        await rename(fetched.file, target)
      })
      return await localFile(target)
    } catch (error) {
      await this.drop(fetched)
      throw error
    }
  }
  /** The content of a file. Undefined when the file has changed since it was found. */
  async read(path: string, { bytes, stamp }: LocalFile): Promise<Readable | undefined> {
    if (folderOf(path) !== undefined) return Readable.from([])
    const { O_RDONLY, O_NOFOLLOW, O_NONBLOCK } = constants
    const handle = await open(join(this.folder, path), O_RDONLY | O_NOFOLLOW | O_NONBLOCK).catch(() => undefined)
    if (!handle) return undefined
    const info = await handle.stat({ bigint: true })
    if (!info.isFile() || stampOf(info) !== stamp) {
      await handle.close()
      return undefined
    }
    if (bytes === 0) {
      await handle.close()
      return Readable.from([])
    }
    // Reads no more than the scan found. A file that grows meanwhile is found again by the next scan.
    return handle.createReadStream({ start: 0, end: bytes - 1 })
  }
  async isSame(path: string, { file }: Fetched): Promise<boolean> {
    if (folderOf(path) !== undefined) return true
    const [here, there] = await Promise.all([readFile(join(this.folder, path)), readFile(file)])
    return here.equals(there)
  }
  /** Removes a file that has not changed, and the folders that are empty without it. */
  async remove(path: string, { stamp }: LocalFile): Promise<void> {
    if ((await this.find(path))?.stamp !== stamp) return
    if (folderOf(path) === undefined) await unlink(join(this.folder, path))
    for (let at = dirname(path); at !== '.'; at = dirname(at)) {
      const isGone = await rmdir(join(this.folder, at)).then(
        () => true,
        () => false,
      )
      if (!isGone) return
    }
  }
  /** Renames a file. The new name must be free. */
  async move(path: string, to: string): Promise<LocalFile | undefined> {
    await rename(join(this.folder, path), join(this.folder, to))
    return this.find(to)
  }
}
