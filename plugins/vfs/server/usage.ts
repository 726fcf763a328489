import { overLimit } from '#contracts/limits'
import { limitErrors } from '#contracts/limits'
import { mostObjectsAtOnce, type NewObject, type ObjectBackend } from '#contracts/object-store'
import { ObjectTree, type Tree } from './tree.ts'

export interface Counts {
  bytes: number
  entries: number
}

/** The limits on scratch spaces and copy-on-write layers: for one session, and for all sessions of its tenant. */
export interface Bounds {
  readonly session: Readonly<Counts>
  readonly tenant: Readonly<Counts>
}

/** The counters of a tenant and of one session. Both include files that are being written. */
export interface Accounts {
  readonly tenant: Counts
  readonly session: Counts
  bounds(): Bounds
}

/** Reserves bytes and entries. Throws 409 `limit_exceeded` if a limit would be exceeded. */
function take({ tenant, session, bounds }: Accounts, bytes: number, entries: number): void {
  const most = bounds()
  if (bytes > 0) {
    if (tenant.bytes + bytes > most.tenant.bytes) throw overLimit('vfsBytes', most.tenant.bytes)
    if (session.bytes + bytes > most.session.bytes) throw overSession('bytes', most.session.bytes)
  }
  if (entries > 0) {
    if (tenant.entries + entries > most.tenant.entries) throw overLimit('vfsEntries', most.tenant.entries)
    if (session.entries + entries > most.session.entries) throw overSession('files', most.session.entries)
  }
  give({ tenant, session }, -bytes, -entries)
}

function give({ tenant, session }: Pick<Accounts, 'tenant' | 'session'>, bytes: number, entries: number): void {
  for (const counts of [tenant, session]) {
    counts.bytes = Math.max(0, counts.bytes - bytes)
    counts.entries = Math.max(0, counts.entries - entries)
  }
}

const overSession = (what: string, max: number) =>
  limitErrors.limitExceeded({
    message: `A session may have ${max} ${what} in its scratch space and its copy-on-write layers.`,
    detail: { limit: `vfs session ${what}`, max },
  })

/** Files of a session below the session's own prefix. Usage is counted as files are written and deleted. */
export function countedTree(objects: ObjectBackend, tenantId: string, prefix: string, accounts: Accounts): Tree {
  const files = new ObjectTree(objects, tenantId, prefix)
  return {
    walk: (folder, walk) => files.walk(folder, walk),
    open: (path) => files.open(path),
    async put(path, file) {
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
