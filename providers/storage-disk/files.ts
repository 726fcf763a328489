import { type FileHandle, open, rmdir } from 'node:fs/promises'
import { dirname } from 'node:path'
import type { ObjectInfo } from '#contracts/object-store'

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
export async function openFile(path: string): Promise<{ file: FileHandle; info: ObjectInfo } | undefined> {
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

export async function infoOf(path: string): Promise<ObjectInfo | undefined> {
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
export async function syncFolder(path: string): Promise<void> {
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
export async function syncFolders(path: string, root: string): Promise<void> {
  for (let at = path; ; at = dirname(at)) {
    await syncFolder(at)
    if (at === root || at === dirname(at)) return
  }
}

/** Removes `path` and the folders above it, below `root`, for as long as they are empty. */
export async function removeEmpty(path: string, root: string): Promise<void> {
  for (let at = path; at !== root && at !== dirname(at); at = dirname(at)) {
    try {
      await rmdir(at)
    } catch {
      // The folder is not empty, or gone: there is nothing to remove.
      return
    }
  }
}
