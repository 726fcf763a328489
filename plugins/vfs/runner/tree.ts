import pLimit from 'p-limit'
import { isAppError } from '#kernel'
import { copyBounds, type SessionVfs, type TreeMount, type VfsTree } from '#contracts/session-vfs'
import { mostEntriesAtOnce, vfsErrors, type VfsMount } from '#contracts/vfs'

/** How many mounts are listed at the same time. */
const atOnce = 8

/** The files of a session as far as a sandbox has them: each mount has an equal share, whatever is in the others. */
export async function treeOf(files: Pick<SessionVfs, 'mounts' | 'list'>, signal?: AbortSignal): Promise<VfsTree> {
  const mounts = await files.mounts({ signal })
  const bytes = Math.floor(copyBounds.bytes / Math.max(1, mounts.length))
  const share = {
    files: Math.floor(copyBounds.files / Math.max(1, mounts.length)),
    bytes,
    fileBytes: Math.min(copyBounds.fileBytes, bytes),
  }
  const inTurn = pLimit(atOnce)
  const trees = mounts.map((mount) => inTurn(() => treeOfMount(files, mount, share.files, signal)))
  return { mounts: await Promise.all(trees), share }
}

/** A mount that cannot be listed does not keep the others from being copied. */
async function treeOfMount(
  files: Pick<SessionVfs, 'list'>,
  { name, readOnly }: VfsMount,
  most: number,
  signal: AbortSignal | undefined,
): Promise<TreeMount> {
  const found: { readonly path: string; readonly bytes: number; readonly etag: string }[] = []
  try {
    for (let cursor: string | undefined; ;) {
      const limit = Math.min(mostEntriesAtOnce, most - found.length)
      const page = await files.list(name, '', {
        recursive: true,
        limit: Math.max(1, limit),
        signal,
        ...(cursor === undefined ? {} : { cursor }),
      })
      for (const { path, bytes = 0, etag = '' } of page.entries) found.push({ path, bytes, etag })
      cursor = page.cursor
      const complete = cursor === undefined
      if (complete || found.length >= most) return { name, readOnly, files: found.slice(0, most), complete }
    }
  } catch (error) {
    if (!isAppError(error) || mayBeAll.has(error.code)) throw error
    return { name, readOnly, files: [], complete: false, unavailable: error.sentence ?? error.code }
  }
}

/** What is true of every mount of the session. */
const mayBeAll: ReadonlySet<string> = new Set([
  vfsErrors.noVfsSession.row.code,
  vfsErrors.vfsUpstreamUnavailable.row.code,
])
