import { type BigIntStats } from 'node:fs'
import { lstat, opendir } from 'node:fs/promises'
import { join } from 'node:path'
import { emptyFolder, folderOf, isVfsPath } from '#contracts/vfs'

/** A file on disk, or an empty folder, which is represented by a placeholder file. */
export interface LocalFile {
  readonly bytes: number
  /** Differs after every change: a program can set the modification time of a file, but not the change time. */
  readonly stamp: string
  readonly executable: boolean
}

/** The content of a mount's folder. */
export interface Scan {
  /** By path below the mount. */
  readonly files: ReadonlyMap<string, LocalFile>
  /** Entries that cannot be kept, by path, with the reason. Nothing below such an entry is scanned. */
  readonly odd: ReadonlyMap<string, string>
  /** True when the folder has more entries than were scanned. */
  readonly cut: boolean
}

export const stampOf = ({ ino, size, mtimeNs, ctimeNs }: BigIntStats): string => `${ino}:${size}:${mtimeNs}:${ctimeNs}`

const fileOf = (info: BigIntStats): LocalFile => ({
  bytes: Number(info.size),
  stamp: stampOf(info),
  executable: (info.mode & 0o100n) !== 0n,
})
/** All empty folders are alike, so they share one stamp. */
const anEmptyFolder: LocalFile = { bytes: 0, stamp: 'folder', executable: false }

/** The file or empty folder at a path. Undefined when there is none, or something else. */
export async function localFile(path: string): Promise<LocalFile | undefined> {
  const folder = folderOf(path)
  if (folder !== undefined) return (await isEmpty(folder)) ? anEmptyFolder : undefined
  const info = await lstat(path, { bigint: true }).catch(() => undefined)
  return info?.isFile() ? fileOf(info) : undefined
}

async function isEmpty(folder: string): Promise<boolean> {
  if (!(await lstat(folder).catch(() => undefined))?.isDirectory()) return false
  const entries = await opendir(folder).catch(() => undefined)
  const first = await entries?.read()
  await entries?.close()
  return first === null
}

/** Scans up to `most` entries. Undefined when the folder does not exist; 'no folder' when something else is there. */
export async function scan(folder: string, most: number): Promise<Scan | 'no folder' | undefined> {
  const top = await lstat(folder).catch(() => undefined)
  if (!top) return undefined
  if (!top.isDirectory()) return 'no folder'
  const files = new Map<string, LocalFile>()
  const odd = new Map<string, string>()
  const waiting = ['']
  let left = most
  for (let at = waiting.pop(); at !== undefined; at = waiting.pop()) {
    const entries = await opendir(join(folder, at)).catch(() => undefined)
    if (!entries) {
      if (at !== '') odd.set(at, 'the folder cannot be read')
      continue
    }
    let isEmptyFolder = at !== '' && isVfsPath(`${at}/${emptyFolder}`)
    // The entries are streamed, because a folder may have any number of them.
    for await (const { name } of entries) {
      isEmptyFolder = false
      if (left-- <= 0) return { files, odd, cut: true }
      const path = at === '' ? name : `${at}/${name}`
      const info = await lstat(join(folder, path), { bigint: true }).catch(() => undefined)
      // The entry was deleted in the meantime, or its name is not UTF-8 and was decoded with replacement characters.
      if (!info) {
        if (name.includes('\ufffd')) odd.set(path, 'the name is no UTF-8')
      } else if (!isVfsPath(path)) odd.set(path, 'the virtual file system takes no such name')
      else if (info.isDirectory()) waiting.push(path)
      else if (name === emptyFolder) odd.set(path, 'the name stands for an empty folder')
      else if (info.isFile()) files.set(path, fileOf(info))
      else odd.set(path, info.isSymbolicLink() ? 'links are not kept' : 'it is no regular file')
    }
    if (isEmptyFolder) files.set(`${at}/${emptyFolder}`, anEmptyFolder)
  }
  return { files, odd, cut: false }
}

/** True for an entry that cannot be kept, and for everything below it. */
export function isBlocked({ odd }: Scan, path: string): boolean {
  if (odd.size === 0) return false
  for (let end = path.length; end > 0; end = path.lastIndexOf('/', end - 1))
    if (odd.has(path.slice(0, end))) return true
  return false
}
