import { type BigIntStats } from 'node:fs'
import { lstat, opendir } from 'node:fs/promises'
import { join } from 'node:path'
import { isVfsPath } from '#contracts/vfs'

/** A file as it is on disk. */
export interface LocalFile {
  readonly bytes: number
  /** Another one after every change: a program can set the time of a file, but not when it did so. */
  readonly stamp: string
}

/** What is in the folder of a mount. */
export interface Scan {
  /** By path below the mount. */
  readonly files: ReadonlyMap<string, LocalFile>
  /** What is no file that could be kept, by path, with the reason. Nothing below it is looked at. */
  readonly odd: ReadonlyMap<string, string>
  /** There is more than was looked at. */
  readonly cut: boolean
}

export const stampOf = ({ ino, size, mtimeNs, ctimeNs }: BigIntStats): string => `${ino}:${size}:${mtimeNs}:${ctimeNs}`

/** The file at a path; undefined when there is none, or something else. */
export async function localFile(path: string): Promise<LocalFile | undefined> {
  const info = await lstat(path, { bigint: true }).catch(() => undefined)
  return info?.isFile() ? { bytes: Number(info.size), stamp: stampOf(info) } : undefined
}

/** Looks at `most` entries. Undefined when the folder is not there; 'no folder' when something else is. */
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
    // Not all at once: a folder may have any number of them.
    for await (const { name } of entries) {
      if (left-- <= 0) return { files, odd, cut: true }
      const path = at === '' ? name : `${at}/${name}`
      const info = await lstat(join(folder, path), { bigint: true }).catch(() => undefined)
      // Gone meanwhile; or its name is no UTF-8, and was put into other words.
      if (!info) {
        if (name.includes('\ufffd')) odd.set(path, 'the name is no UTF-8')
      } else if (!isVfsPath(path)) odd.set(path, 'the virtual file system takes no such name')
      else if (info.isDirectory()) waiting.push(path)
      else if (info.isFile()) files.set(path, { bytes: Number(info.size), stamp: stampOf(info) })
      else odd.set(path, info.isSymbolicLink() ? 'links are not kept' : 'it is no regular file')
    }
  }
  return { files, odd, cut: false }
}

/** True for an odd entry and for everything below one. */
export function isBlocked({ odd }: Scan, path: string): boolean {
  if (odd.size === 0) return false
  for (let end = path.length; end > 0; end = path.lastIndexOf('/', end - 1))
    if (odd.has(path.slice(0, end))) return true
  return false
}
