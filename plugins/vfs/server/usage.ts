import { limitErrors, overLimit } from '#contracts/limits'
import { mostObjectsAtOnce, type NewObject, type ObjectBackend } from '#contracts/object-store'
import type { Tree } from './tree.ts'

export interface Counts {
  bytes: number
  entries: number
}

/** Counts, which include files that are being written, with the bounds on them. */
export interface Account {
  readonly counts: Counts
  most(): Readonly<Counts>
  /** The error for a write that would pass a bound. */
  over(what: keyof Counts, most: number): Error
}

/** Reserves bytes and entries. Throws 409 `limit_exceeded` if a bound would be passed. */
function take(accounts: readonly Account[], bytes: number, entries: number): void {
  for (const { counts, most, over } of accounts) {
    const { bytes: mostBytes, entries: mostEntries } = most()
    if (bytes > 0 && counts.bytes + bytes > mostBytes) throw over('bytes', mostBytes)
    if (entries > 0 && counts.entries + entries > mostEntries) throw over('entries', mostEntries)
  }
  give(accounts, -bytes, -entries)
}

function give(accounts: readonly Pick<Account, 'counts'>[], bytes: number, entries: number): void {
  for (const { counts } of accounts) {
    counts.bytes = Math.max(0, counts.bytes - bytes)
    counts.entries = Math.max(0, counts.entries - entries)
  }
}

/** Removes some of the objects below a prefix, as `ObjectBackend.removeAll` does, and takes them off the counts of their tenant. */
export async function removeSome(
  objects: ObjectBackend,
  [tenantId, prefix]: readonly [string, string],
  counts: Counts,
  signal?: AbortSignal,
): ReturnType<ObjectBackend['removeAll']> {
  const gone = await objects.removeAll(tenantId, prefix, mostObjectsAtOnce, signal)
  give([{ counts }], gone.bytes, gone.objects)
  return gone
}

/** A tenant in all its sessions. */
export const tenantAccount = (counts: Counts, most: () => Readonly<Counts>): Account => ({
  counts,
  most,
  over: (what, max) => overLimit(what === 'bytes' ? 'vfsBytes' : 'vfsEntries', max),
})

export const sessionAccount = (counts: Counts, most: Readonly<Counts>): Account => ({
  counts,
  most: () => most,
  over(what, max) {
    const things = what === 'bytes' ? 'bytes' : 'files'
    return limitErrors.limitExceeded({
      message: `A session may have ${max} ${things} in its scratch space and its copy-on-write layers.`,
      detail: { limit: `vfs session ${things}`, max },
    })
  },
})

/** Files that count for accounts as they are written and deleted. `accountsOf` is called for each write and deletion. */
export function countedTree(files: Tree, accountsOf: () => Promise<readonly Account[]>): Tree {
  return {
    walk: (folder, walk) => files.walk(folder, walk),
    open: (path) => files.open(path),
    async put(path, file) {
      const accounts = await accountsOf()
      let bytes = 0
      take(accounts, 0, 1)
      try {
        const counted = {
          ...file,
          sha256: () => file.sha256(),
          body: passing(file.body, (more) => {
            take(accounts, more, 0)
            bytes += more
          }),
        }
        const stored = await files.put(path, counted)
        if (stored.replaced !== undefined) give(accounts, stored.replaced, 1)
        return stored
      } catch (error) {
        give(accounts, bytes, 1)
        throw error
      }
    },
    async remove(path, ifMatch) {
      const accounts = await accountsOf()
      const bytes = await files.remove(path, ifMatch)
      if (bytes !== undefined) give(accounts, bytes, 1)
      return bytes
    },
  }
}

async function* passing(body: NewObject['body'], onBytes: (bytes: number) => void): AsyncGenerator<Uint8Array> {
  for await (const chunk of body) {
    onBytes(chunk.length)
    yield chunk
  }
}

export async function count(objects: ObjectBackend, tenantId: string, prefix: string): Promise<Counts> {
  const counts = { bytes: 0, entries: 0 }
  for (let after: string | undefined = ''; after !== undefined;) {
    const query = { prefix, after, limit: mostObjectsAtOnce, folders: false }
    const page: Awaited<ReturnType<ObjectBackend['list']>> = await objects.list(tenantId, query)
    for (const { bytes } of page.objects) counts.bytes += bytes
    counts.entries += page.objects.length
    after = page.next
  }
  return counts
}
