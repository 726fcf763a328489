import pLimit from 'p-limit'
import { isAppError } from '#kernel'
import type { CopyShare, TreeMount } from '#contracts/session-vfs'
import { folderOf, isNewVfsPath } from '#contracts/vfs'
import type { Notes } from './notes.ts'
import { type Known, planOf, type RemoteEntry, type Step } from './plan.ts'
import type { RemoteFiles } from './remote.ts'
import { type LocalFile, localFile, type Scan, stampOf } from './scan.ts'
import { randomBytes } from 'node:crypto'
import { constants } from 'node:fs'
import { chmod, lstat, mkdir, open, readFile, rename, rm, rmdir, unlink } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { Readable } from 'node:stream'

/** Concurrent transfers: fewer than the runner allows a worker. */
const atOnce = 6
/** The most names to try for a file that is put aside. */
const mostNames = 20

interface MountOptions {
  readonly root: string
  readonly mount: TreeMount
  readonly share: CopyShare
  /** The synchronized versions. Settling updates them. */
  readonly known: Map<string, Known>
  readonly remote: RemoteFiles
  readonly notes: Notes
}

/** The order of the steps: a file may take the place of a folder that an earlier step has emptied, on either side. */
const order: readonly Step['kind'][] = ['forget', 'remove there', 'clash', 'upload', 'remove here', 'download']

/** Synchronizes one mount by executing its plan. */
export class MountSettling {
  readonly #options: MountOptions
  readonly #folder: MountFolder
  /** True when an upload or a deletion has changed the VirtualFS, so that the list is stale. */
  wrote = false
  /** True when a concurrent change in the VirtualFS has beaten an upload from here. */
  isOvertaken = false

  constructor(options: MountOptions) {
    this.#options = options
    this.#folder = new MountFolder(options.root, options.mount.name)
  }

  /** Resolves to true when the VirtualFS has files that the sandbox does not get. */
  async settle(looked: Scan, signal: AbortSignal): Promise<boolean> {
    const { mount, share, known, notes } = this.#options
    const { steps, refused, partial } = planOf({ mount, share, scan: await this.#complete(looked), known })
    for (const [path, reason] of refused) this.#refuse(path, reason)
    if (looked.cut)
      notes.tell(`'vfs/${mount.name}' has more entries than are looked at, so new files in it may not be kept`)
    for (const kind of order) {
      const inTurn = pLimit(kind === 'clash' ? 1 : atOnce)
      await allOf(steps.filter((step) => step.kind === kind).map((step) => inTurn(() => this.#do(step, signal))))
    }
    return partial
  }

  /** A scan that was cut off may have missed known files, so these are looked up one by one. */
  async #complete(looked: Scan): Promise<Scan> {
    if (!looked.cut) return looked
    const files = new Map(looked.files)
    for (const path of this.#options.known.keys()) {
      const here = files.has(path) ? undefined : await this.#folder.find(path)
      if (here) files.set(path, here)
    }
    return { ...looked, files }
  }

  /** A failure that concerns one file must not stop the other files. */
  async #do(step: Step, signal: AbortSignal): Promise<void> {
    try {
      await this.#execute(step, signal)
    } catch (error) {
      const reason = reasonOf(error)
      if (reason === undefined) throw error
      const { mount, notes } = this.#options
      const isHere = step.kind === 'download' || step.kind === 'remove here'
      if (isHere) notes.old(`vfs/${mount.name}/${step.path}`, reason)
      else this.#refuse(step.path, reason)
    }
  }
  async #execute(step: Step, signal: AbortSignal): Promise<void> {
    const { known, remote, mount } = this.#options
    switch (step.kind) {
      case 'forget':
        return void known.delete(step.path)
      case 'remove there':
        // If the file has changed in the VirtualFS, nothing is deleted and the next list brings the file back.
        this.wrote = true
        await remote.remove(mount.name, step.path, step.etag, signal)
        return void known.delete(step.path)
      case 'remove here':
        await this.#folder.remove(step.path, step.here)
        return void known.delete(step.path)
      case 'download': {
        const fetched = await this.#fetch(step.there, signal)
        return fetched && this.#place(fetched, step.path, step.here)
      }
      case 'upload':
        return this.#upload(step.path, step.here, step.etag, signal)
      case 'clash':
        return this.#clash(step, signal)
    }
  }

  async #fetch({ path, etag }: RemoteEntry, signal: AbortSignal): Promise<Fetched | undefined> {
    const { remote, mount, share } = this.#options
    const file = await remote.read(mount.name, path, signal)
    if (!file) return undefined
    const { body, executable } = file
    return this.#folder.fetch(body, share.fileBytes, { etag: file.etag ?? etag, executable })
  }
  async #place(fetched: Fetched, path: string, here: LocalFile | undefined): Promise<void> {
    const { mount, known } = this.#options
    const placed = await this.#folder.place(fetched, path, here, mount.readOnly)
    if (placed) known.set(path, { etag: fetched.etag, stamp: placed.stamp })
  }
  async #upload(path: string, here: LocalFile, expected: string | undefined, signal: AbortSignal): Promise<void> {
    const { remote, mount, known } = this.#options
    if (!isNewVfsPath(path)) return this.#refuse(path, 'the virtual file system takes no such name')
    const body = await this.#folder.read(path, here)
    // The file is being written now. The next pass may find it complete.
    if (!body) return
    const etag = await remote
      .write({ mount: mount.name, path, bytes: here.bytes, executable: here.executable, body, expected }, signal)
      // The upload may have ended early, so the open file must be closed.
      .finally(() => body.destroy())
    this.wrote = true
    this.isOvertaken ||= etag === 'changed'
    // The stamp from before the upload is recorded. So a write during the upload counts as a new change.
    if (etag !== 'changed') known.set(path, { etag, stamp: here.stamp })
    else if (expected === undefined) this.#refuse(path, 'there is a file of this name that the sandbox does not have')
    else this.#refuse(path, 'it was changed on the VirtualFS meanwhile; it is synchronized with the next call')
  }
  /** Nothing is lost: the file of the VirtualFS keeps the name, and the sandbox's file gets another name on both sides. */
  async #clash({ path, here, there }: Extract<Step, { kind: 'clash' }>, signal: AbortSignal): Promise<void> {
    const { share, known, notes, mount } = this.#options
    const fetched = there.bytes <= share.fileBytes ? await this.#fetch(there, signal) : undefined
    if (fetched && here.bytes === there.bytes && (await this.#folder.isSame(path, fetched))) {
      known.set(path, { etag: fetched.etag, stamp: here.stamp })
      return this.#folder.drop(fetched)
    }
    const aside = await this.#freeName(path)
    if (aside === undefined) {
      if (fetched) await this.#folder.drop(fetched)
      return this.#refuse(path, 'it was also changed on the VirtualFS')
    }
    const moved = await this.#folder.move(path, aside)
    known.delete(path)
    if (fetched) await this.#place(fetched, path, undefined)
    notes.tell(
      `'vfs/${mount.name}/${path}' was also changed on the VirtualFS: that version keeps the name, and yours is '${aside}' beside it`,
    )
    if (moved) await this.#upload(aside, moved, undefined, signal)
  }
  async #freeName(path: string): Promise<string | undefined> {
    const taken = new Set(this.#options.mount.files.map((file) => file.path))
    for (let i = 1; i <= mostNames; i++) {
      const name = `${path}.conflict${i === 1 ? '' : `-${i}`}`
      if (!isNewVfsPath(name) || Buffer.byteLength(name.split('/').at(-1)!) > 255) return undefined
      if (!taken.has(name) && !(await this.#folder.find(name))) return name
    }
    return undefined
  }
  #refuse(path: string, reason: string): void {
    this.#options.notes.refuse(`vfs/${this.#options.mount.name}/${path}`, reason)
  }
}

/** Waits for all steps, so that none runs on after the caller has gone on. Then throws the first failure. */
async function allOf(all: readonly Promise<void>[]): Promise<void> {
  const ended = await Promise.allSettled(all)
  const failed = ended.find((one) => one.status === 'rejected')
  if (failed) throw failed.reason
}

const here: Readonly<Record<string, string>> = {
  EACCES: 'the sandbox does not let it be written',
  EPERM: 'the sandbox does not let it be written',
  ENOSPC: 'the disk of the sandbox is full',
  EDQUOT: 'the disk of the sandbox is full',
}

/** Why this file could not be synchronized, as part of a sentence. Undefined when the error does not concern this file alone. */
function reasonOf(error: unknown): string | undefined {
  if (isAppError(error) && error.code === 'file_refused') {
    const said = error.sentence ?? 'It was refused.'
    return `${said.slice(0, 1).toLowerCase()}${said.slice(1).replace(/\.$/, '')}`
  }
  const { code, syscall } = error as NodeJS.ErrnoException
  // Only errors of the file system have a `syscall` here. Network failures are AppErrors.
  if (isAppError(error) || syscall === undefined || code === undefined) return undefined
  return here[code] ?? 'something else is in its place'
}

/** A downloaded file that is not yet in its place. */
interface Fetched {
  readonly file: string
  readonly etag: string
  readonly executable: boolean
}

/** The folder of a mount in the sandbox. Files are replaced atomically, and no link is followed where a file should be. */
class MountFolder {
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
