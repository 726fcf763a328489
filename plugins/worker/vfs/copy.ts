import { lstat, mkdir, opendir, readFile, rm } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { type Static, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import type { FastifyBaseLogger } from 'fastify'
import pLimit from 'p-limit'
import { isAppError } from '#kernel'
import type { VfsTree } from '#contracts/session-vfs'
import { settleFilesMs } from '#contracts/wire/worker'
import { replaceFile } from '../disk.ts'
import { MountSettling } from './mount.ts'
import { nameOf, Notes } from './notes.ts'
import type { Known } from './plan.ts'
import type { RemoteFiles } from './remote.ts'
import { scan, type Scan } from './scan.ts'

/** The most entries to scan for each file that a mount may have. Folders and surplus files count as well. */
const entriesPerFile = 4
/** This much of the caller's time is left for the answer, so that it arrives in time. */
const answerMs = 2_000
/** The most names to check in the folder that holds the mounts. */
const mostBeside = 200

export interface FilesCopyOptions {
  /** The folder of the mounts. It is created if it does not exist. */
  readonly root: string
  readonly remote: RemoteFiles
  /**
   * Returns the file that records the synchronized versions of the present session, so that they survive a restart. Undefined keeps them in memory
   * only.
   */
  readonly memory: (() => string) | undefined
  readonly log: FastifyBaseLogger
}

/**
 * The files of a session's mounts in its sandbox. This process copies them, with the same rights as the agent's own programs. So a link that such a
 * program plants leads nowhere the program could not go itself.
 */
export class FilesCopy {
  readonly #options: FilesCopyOptions
  #known: KnownFiles
  readonly #oneAtATime = pLimit(1)
  /** The latest list of the mounts. */
  #tree: VfsTree | undefined
  /** True when nothing was uploaded or deleted since the list was read, so the list still describes both sides. */
  #isFresh = false
  /** The last note about files that are missing in the sandbox. */
  #told = ''

  constructor(options: FilesCopyOptions) {
    this.#options = options
    this.#known = new KnownFiles(options.memory?.())
  }

  /** Must be called when this worker gets another session. */
  begin(): void {
    this.#known = new KnownFiles(this.#options.memory?.())
    this.#tree = undefined
    this.#isFresh = false
    this.#told = ''
  }

  /** Synchronizes both sides. Never rejects. Resolves to a note for the model, or '' when there is none. */
  settle(signal: AbortSignal): Promise<string> {
    return this.#oneAtATime(() => this.#settle(signal))
  }
  /**
   * Synchronizes only if something has changed in the sandbox. A fresh list is not requested again, because each write is a compare-and-set on the
   * etag.
   */
  async settleIfTouched(signal: AbortSignal): Promise<string> {
    return this.#oneAtATime(async () => {
      if (!(await this.#isTouched().catch(() => true))) return ''
      return this.#settle(signal, this.#isFresh ? this.#tree : undefined)
    })
  }

  async #settle(signal: AbortSignal, known?: VfsTree): Promise<string> {
    let notes = new Notes()
    const late = AbortSignal.timeout(settleFilesMs - answerMs)
    const either = AbortSignal.any([signal, late])
    try {
      const isOvertaken = await this.#settleAll(notes, either, known)
      if (known && isOvertaken) {
        notes = new Notes()
        await this.#settleAll(notes, either)
      }
    } catch (err) {
      if (signal.aborted) return ''
      this.#options.log.warn({ err }, 'the files of the sandbox were not synchronized')
      notes.tell(whyNot(err, late))
    } finally {
      await this.#known
        .save()
        .catch((err: unknown) => this.#options.log.warn({ err }, 'the state of synchronized files was not saved'))
    }
    return notes.text
  }

  /** Resolves to true when a concurrent change in the VirtualFS has beaten an upload from here. */
  async #settleAll(notes: Notes, signal: AbortSignal, given?: VfsTree): Promise<boolean> {
    const { root, remote } = this.#options
    await this.#known.load()
    await mkdir(root, { recursive: true }).catch(() => {})
    if (!(await lstat(root).catch(() => undefined))?.isDirectory()) {
      notes.tell("'vfs' is no folder any more, so none of the mounts is here; remove it and call a tool again")
      return false
    }
    await this.#clear()
    this.#isFresh = false
    const tree = given ?? (await remote.tree(signal))
    this.#tree = tree
    const { mounts, share } = tree
    const missing: string[] = []
    let [wrote, isOvertaken] = [false, false]
    for (const mount of mounts) {
      if (mount.unavailable !== undefined) {
        notes.tell(`the mount ${mount.name} is not available, and stays here as it was: ${mount.unavailable}`)
        continue
      }
      const settling = new MountSettling({ root, mount, share, known: this.#known.of(mount.name), remote, notes })
      const looked = await this.#look(mount.name)
      if (looked === 'no folder') {
        notes.tell(
          `'vfs/${mount.name}' is no folder any more, so nothing of the mount is here; remove it and call a tool again`,
        )
        continue
      }
      if (await settling.settle(looked, signal)) missing.push(mount.name)
      wrote ||= settling.wrote
      isOvertaken ||= settling.isOvertaken
    }
    this.#isFresh = !wrote
    this.#known.keepOnly(mounts.map(({ name }) => name))
    await this.#tellStrays(notes)
    this.#tellMissing(notes, missing)
    await this.#clear()
    return isOvertaken
  }

  /**
   * Scans a mount. A missing mount folder does not mean that the user deleted all files, because a real mount point cannot be removed: it is created
   * again and refilled.
   */
  async #look(mount: string): Promise<Scan | 'no folder'> {
    const { root } = this.#options
    const known = this.#known.of(mount)
    const found = await scan(join(root, mount), (this.#tree?.share.files ?? 0) * entriesPerFile + 1)
    if (found === undefined) {
      known.clear()
      await mkdir(join(root, mount), { recursive: true })
      return { files: new Map(), odd: new Map(), cut: false }
    }
    return found
  }

  /** Deletes the leftovers of a killed process, or anything else at this path. */
  async #clear(): Promise<void> {
    await rm(join(this.#options.root, '.incoming'), { recursive: true, force: true }).catch(() => {})
  }

  async #isTouched(): Promise<boolean> {
    for (const { name, unavailable } of this.#tree?.mounts ?? []) {
      if (unavailable !== undefined) continue
      const found = await this.#look(name)
      if (found === 'no folder' || found.cut || found.odd.size > 0) return true
      const known = this.#known.of(name)
      if (found.files.size !== known.size) return true
      for (const [path, { stamp }] of found.files) if (known.get(path)?.stamp !== stamp) return true
    }
    return false
  }

  async #tellStrays(notes: Notes): Promise<void> {
    const names = new Set(['.incoming', ...this.#tree!.mounts.map(({ name }) => name)])
    let left = mostBeside
    for await (const { name } of await opendir(this.#options.root)) {
      if (!names.has(name)) notes.refuse(`vfs/${name}`, 'it is in none of the mounts')
      if (--left === 0) return
    }
  }
  /** Reports missing files once, and again only when the sentence changes. */
  #tellMissing(notes: Notes, mounts: readonly string[]): void {
    const said =
      mounts.length === 0
        ? ''
        : `not all files of ${mounts.map(nameOf).join(', ')} are in the sandbox; vfs_list, vfs_search and vfs_read reach all of them`
    if (said !== '' && said !== this.#told) notes.tell(said)
    this.#told = said
  }
}

function whyNot(error: unknown, late: AbortSignal): string {
  if (late.aborted) return 'not all files could be copied in time; the rest follows with the next call'
  const said = isAppError(error) ? error.sentence : undefined
  return `the virtual file system cannot be reached, so files may be old, and what you change is kept when it can be: ${said ?? 'no answer'}`
}

const Stored = Type.Object({
  version: Type.Literal(1),
  mounts: Type.Array(
    Type.Object({ name: Type.String(), files: Type.Array(Type.Tuple([Type.String(), Type.String(), Type.String()])) }),
  ),
})

/** The versions that both sides last had in common, by mount and path. */
class KnownFiles {
  readonly #file: string | undefined
  readonly #mounts = new Map<string, Map<string, Known>>()
  #loaded = false
  #saved = ''

  /** `file` stores the record. When it is undefined, the record ends with this process, and equal files are then recognized by their bytes. */
  constructor(file: string | undefined) {
    this.#file = file
  }

  of(mount: string): Map<string, Known> {
    const files = this.#mounts.get(mount) ?? new Map<string, Known>()
    this.#mounts.set(mount, files)
    return files
  }
  keepOnly(mounts: readonly string[]): void {
    for (const name of this.#mounts.keys()) if (!mounts.includes(name)) this.#mounts.delete(name)
  }
  async load(): Promise<void> {
    if (this.#loaded || this.#file === undefined) return
    this.#loaded = true
    const text = await readFile(this.#file, 'utf8').catch(() => '')
    const stored = storedIn(text)
    if (!stored) return
    this.#saved = text
    for (const { name, files } of stored.mounts)
      this.#mounts.set(name, new Map(files.map(([path, etag, stamp]) => [path, { etag, stamp }])))
  }
  async save(): Promise<void> {
    if (this.#file === undefined) return
    const mounts = [...this.#mounts].map(([name, files]) => ({
      name,
      files: [...files].map(([path, { etag, stamp }]) => [path, etag, stamp]),
    }))
    const text = JSON.stringify({ version: 1, mounts })
    if (text === this.#saved) return
    await mkdir(dirname(this.#file), { recursive: true, mode: 0o700 })
    await replaceFile(this.#file, [Buffer.from(text)])
    this.#saved = text
  }
}

function storedIn(text: string): Static<typeof Stored> | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return Value.Check(Stored, value) ? value : undefined
  } catch {
    return undefined
  }
}
