import type { CopyShare, TreeMount } from '#contracts/session-vfs'
import { folderOf } from '#contracts/vfs'
import { isBlocked, type LocalFile, type Scan } from './scan.ts'

/** The version of a file when both sides last had the same content. */
export interface Known {
  readonly etag: string
  readonly stamp: string
}

export type RemoteEntry = TreeMount['files'][number]

/** One step of the synchronization. After all steps both sides are the same. */
export type Step =
  | {
      readonly kind: 'download'
      readonly path: string
      readonly there: RemoteEntry
      readonly here?: LocalFile | undefined
    }
  /** `etag` is the version that the upload may replace; undefined means that the file must not exist yet. */
  | { readonly kind: 'upload'; readonly path: string; readonly here: LocalFile; readonly etag: string | undefined }
  | { readonly kind: 'remove there'; readonly path: string; readonly etag: string }
  | { readonly kind: 'remove here'; readonly path: string; readonly here: LocalFile }
  | { readonly kind: 'forget'; readonly path: string }
  /** Both sides have changed the file. */
  | { readonly kind: 'clash'; readonly path: string; readonly here: LocalFile; readonly there: RemoteEntry }

export interface Plan {
  readonly steps: readonly Step[]
  /** Changes that cannot be kept, each with its reason. */
  readonly refused: readonly (readonly [path: string, reason: string])[]
  /** True when the VirtualFS has files that the sandbox does not get. */
  readonly partial: boolean
}

export interface Settled {
  readonly mount: TreeMount
  readonly share: CopyShare
  readonly scan: Scan
  /** The synchronized versions by path below the mount. */
  readonly known: ReadonlyMap<string, Known>
}

/**
 * Compares both sides with the version that they last had in common. A change on one side wins; when both sides have changed a file, the VirtualFS
 * keeps the name. A change wins over a deletion.
 */
export function planOf(settled: Settled): Plan {
  const { mount, share, scan, known } = settled
  const there = new Map(mount.files.map((file) => [file.path, file]))
  withoutFull(there, mount.files)
  const wanted = wantedOf(mount, share)
  const steps: Step[] = []
  const refused: [string, string][] = [...scan.odd]
  const room = roomIn(settled)
  for (const path of [...new Set([...known.keys(), ...scan.files.keys(), ...there.keys()])].toSorted()) {
    if (isBlocked(scan, path)) continue
    const base = known.get(path)
    const here = scan.files.get(path)
    const sides = {
      path,
      base,
      here,
      there: there.get(path),
      isWanted: wanted.has(path),
      isListed: isListed(mount, path),
    }
    const step =
      here && here.stamp !== base?.stamp ? changedHere({ ...sides, here }, settled, room) : unchangedHere(sides, mount)
    if (typeof step === 'string') refused.push([path, step])
    else if (step) steps.push(step)
  }
  return { steps, refused, partial: !mount.complete || wanted.size < mount.files.length }
}

/** Removes the entries of empty folders that have files by now. */
function withoutFull(there: Map<string, RemoteEntry>, files: readonly RemoteEntry[]): void {
  const folders = new Set<string>()
  for (const { path } of files) {
    // The entry of an empty folder counts only for the folders above it.
    const from = folderOf(path) === undefined ? path : folderOf(path)!
    for (let end = from.lastIndexOf('/'); end > 0; end = from.lastIndexOf('/', end - 1)) folders.add(from.slice(0, end))
  }
  for (const path of there.keys()) if (folders.has(folderOf(path) ?? '')) there.delete(path)
}

interface Sides {
  readonly path: string
  readonly base: Known | undefined
  readonly here: LocalFile | undefined
  readonly there: RemoteEntry | undefined
  /** True when the file fits into the sandbox. */
  readonly isWanted: boolean
  /** True when a missing entry means that the file does not exist. False for a path behind the end of a list that was cut. */
  readonly isListed: boolean
}

function unchangedHere(
  { path, base, here, there, isWanted, isListed }: Sides,
  { readOnly }: TreeMount,
): Step | undefined {
  const sameThere = there ? there.etag === base?.etag : !isListed
  if (here) {
    if (sameThere) return undefined
    return there && isWanted ? { kind: 'download', path, there, here } : { kind: 'remove here', path, here }
  }
  if (!base) return there && isWanted ? { kind: 'download', path, there } : undefined
  if (sameThere && !readOnly) return { kind: 'remove there', path, etag: base.etag }
  return there && isWanted ? { kind: 'download', path, there } : { kind: 'forget', path }
}

/** The step for a file that the sandbox has changed, or the reason why the change cannot be kept. */
function changedHere(
  { path, base, here, there, isListed }: Sides & { readonly here: LocalFile },
  { mount, share }: Settled,
  room: Room,
): Step | string {
  if (mount.readOnly) return 'the mount is read-only'
  if (here.bytes > share.fileBytes) return `it is larger than ${mebibytes(share.fileBytes)}`
  if (!room.take(base ? 0 : 1, here.bytes))
    return `a sandbox has at most ${share.files} files and ${mebibytes(share.bytes)} of a mount`
  if (there && there.etag !== base?.etag) return { kind: 'clash', path, here, there }
  const isThere = there !== undefined || !isListed
  return { kind: 'upload', path, here, etag: isThere ? base?.etag : undefined }
}

interface Room {
  /** Reserves room. False when there is not enough. */
  take(files: number, bytes: number): boolean
}

/** The share of the mount minus the known files. A changed file still counts as a file, but its bytes are counted anew. */
function roomIn({ share, scan, known }: Settled): Room {
  let { files, bytes } = share
  for (const [path, base] of known) {
    const here = scan.files.get(path)
    if (!here) continue
    files--
    if (here.stamp === base.stamp) bytes -= here.bytes
  }
  return {
    take(more, size) {
      if (files < more || bytes < size) return false
      files -= more
      bytes -= size
      return true
    },
  }
}

/** The first files of a mount that fit into its share. */
function wantedOf({ files }: TreeMount, share: CopyShare): ReadonlySet<string> {
  const wanted = new Set<string>()
  let left = share.bytes
  for (const { path, bytes } of files) {
    if (bytes > share.fileBytes || bytes > left || path.split('/').some((name) => Buffer.byteLength(name) > 255))
      continue
    left -= bytes
    wanted.add(path)
  }
  return wanted
}

function isListed({ files, complete }: TreeMount, path: string): boolean {
  const last = files.at(-1)?.path
  return complete || (last !== undefined && Buffer.compare(Buffer.from(path), Buffer.from(last)) <= 0)
}

const mebibytes = (bytes: number): string => `${Math.round((bytes / 1024 / 1024) * 10) / 10} MiB`
