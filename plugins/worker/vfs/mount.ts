import pLimit from 'p-limit'
import { isAppError } from '#kernel'
import type { CopyShare, TreeMount } from '#contracts/session-vfs'
import { isVfsPath } from '#contracts/vfs'
import { type Fetched, MountFolder } from './files.ts'
import type { Notes } from './notes.ts'
import { type Known, planOf, type RemoteEntry, type Step } from './plan.ts'
import type { RemoteFiles } from './remote.ts'
import type { LocalFile, Scan } from './scan.ts'

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
      if (!isVfsPath(name) || Buffer.byteLength(name.split('/').at(-1)!) > 255) return undefined
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
