import { open, rmdir } from 'node:fs/promises'
import { dirname } from 'node:path'

/** What was renamed into a folder, or removed from it, is so after a loss of power, too. */
export async function syncFolder(path: string): Promise<void> {
  const folder = await open(path, 'r').catch((error: NodeJS.ErrnoException) => {
    // Somebody else has removed it because it is empty.
    if (error.code === 'ENOENT') return undefined
    throw error
  })
  try {
    await folder?.sync()
  } finally {
    await folder?.close()
  }
}

/** All folders from `path` up to `root`: some of them are new. */
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
      // Not empty, or gone: nothing to tidy up.
      return
    }
  }
}
