import pLimit from 'p-limit'
import { type AppError, isAppError } from '#kernel'
import type { VfsLease } from '#contracts/leases'
import type { RunnerSession } from '#contracts/runner'
import { copyBounds, type SessionVfs, type TreeMount, usesVfs, type VfsTree } from '#contracts/session-vfs'
import {
  mostEntriesAtOnce,
  type VfsClient,
  vfsErrors,
  type VfsLimits,
  type VfsMount,
  type VfsSession,
  type VfsView,
} from '#contracts/vfs'
import type { VfsManager } from '#contracts/vfs-manager'

interface Held {
  readonly tenantId: string
  readonly sessionId: string
  readonly allowedMounts: readonly string[]
  readonly opened: Promise<VfsSession>
  /** Undefined until the server has opened the lease. */
  openedAt: string | undefined
  usedAt: number
}

/** Milliseconds in which the server has to close a session, so that whoever ended it has an answer in time. */
const closeMs = 5_000

interface Log {
  warn(fields: object, message: string): void
}

const keyOf = (tenantId: string, sessionId: string): string => `${tenantId}\n${sessionId}`
const isNoSession = (error: unknown): error is AppError =>
  isAppError(error) && error.code === vfsErrors.noVfsSession.row.code

/** The leases of a runner's sessions. The first request for files opens a session's lease, so a chat without files sends no request. */
export class Leases implements VfsManager {
  readonly #client: VfsClient
  readonly #log: Log
  readonly #held = new Map<string, Held>()

  constructor(client: VfsClient, log: Log) {
    this.#client = client
    this.#log = log
  }

  get size(): number {
    return this.#held.size
  }
  of(session: RunnerSession): SessionVfs | undefined {
    if (!usesVfs(session.profile)) return undefined
    const client = this.#client
    const use = <T>(request: (view: VfsView) => Promise<T>): Promise<T> => this.#use(session, request)
    const files: SessionVfs = {
      mounts: (...asked) => use((view) => client.mounts(view, ...asked)),
      list: (...asked) => use((view) => client.list(view, ...asked)),
      search: (...asked) => use((view) => client.search(view, ...asked)),
      read: (...asked) => use((view) => this.#unlessClosed(view, () => client.read(view, ...asked))),
      write: (...asked) => use((view) => client.write(view, ...asked)),
      remove: (...asked) => use((view) => this.#unlessClosed(view, () => client.remove(view, ...asked))),
      tree: ({ signal } = {}) => treeOf(files, signal),
    }
    return files
  }
  leases(tenantId: string | undefined): VfsLease[] {
    const wanted = [...this.#held.values()].filter(
      (held) => held.openedAt !== undefined && (tenantId === undefined || held.tenantId === tenantId),
    )
    return wanted.map(shown).toSorted((a, b) => (a.sessionId < b.sessionId ? -1 : 1))
  }
  async lease(tenantId: string, sessionId: string, signal?: AbortSignal): Promise<VfsLease | undefined> {
    const held = this.#held.get(keyOf(tenantId, sessionId))
    try {
      // The server is asked even if this process does not know the session, because this process may have been restarted.
      const there = await this.#client.session(tenantId, sessionId, { signal })
      if (!there) return undefined
      const { allowedMounts, state, openedAt, lastUsedAt, bytes, entries } = there
      return { sessionId, allowedMounts, state, openedAt, lastUsedAt, bytes, entries }
    } catch (error) {
      if (!held?.openedAt) throw error
      return { ...shown(held), state: 'unknown' }
    }
  }
  forget(tenantId: string, sessionId: string): void {
    this.#held.delete(keyOf(tenantId, sessionId))
  }
  async close(tenantId: string, sessionId: string): Promise<void> {
    const key = keyOf(tenantId, sessionId)
    const held = this.#held.get(key)
    this.#held.delete(key)
    try {
      // Waits for a lease that is still being opened. Otherwise the server would open the lease after it was closed.
      await held?.opened.catch(() => {})
      await this.#client.close(tenantId, sessionId, { signal: AbortSignal.timeout(closeMs) })
    } catch (err) {
      this.#log.warn({ err, sessionId }, 'a VirtualFS session was not closed; its server drops it when nobody uses it')
      throw err
    }
  }

  /** Sends a request within the session's lease. If the server has dropped the lease, it is opened again, at most once. */
  async #use<T>(session: RunnerSession, request: (view: VfsView) => Promise<T>): Promise<T> {
    const view = { tenantId: session.tenantId, sessionId: session.id }
    const held = await this.#open(session)
    try {
      return await request(view)
    } catch (error) {
      if (!isNoSession(error)) throw error
      if (this.#held.get(keyOf(view.tenantId, view.sessionId)) === held) this.forget(view.tenantId, view.sessionId)
      await this.#open(session)
      return request(view)
    }
  }
  /** A 404 may mean that the file is missing or that the session is closed. This asks for the session to tell the two apart. */
  async #unlessClosed<T>({ tenantId, sessionId = '' }: VfsView, request: () => Promise<T>): Promise<T> {
    const answer = await request()
    if (!answer && !(await this.#client.session(tenantId, sessionId))) throw vfsErrors.noVfsSession()
    return answer
  }
  async #open(session: RunnerSession): Promise<Held> {
    const { tenantId, id: sessionId } = session
    // The session has left this runner while a request for it was under way.
    if (session.status === 'shutdown') throw vfsErrors.noVfsSession()
    const key = keyOf(tenantId, sessionId)
    const held = this.#held.get(key) ?? this.#begin(session)
    held.usedAt = Date.now()
    await held.opened
    return held
  }
  /** Opens a lease. Concurrent callers share one request, so no single caller can abort it. */
  #begin(session: RunnerSession): Held {
    const { tenantId, id: sessionId, profile } = session
    const key = keyOf(tenantId, sessionId)
    const allowedMounts = profile.vfs?.allowedMounts ?? []
    const { name, runtime } = profile
    const opened = this.#client.open(tenantId, sessionId, {
      profile: name,
      runtime,
      allowedMounts,
      ...limitsOf(session),
    })
    const held: Held = { tenantId, sessionId, allowedMounts, opened, openedAt: undefined, usedAt: Date.now() }
    this.#held.set(key, held)
    opened.then(
      ({ openedAt }) => (held.openedAt = openedAt),
      // Opening failed, so the lease is forgotten and the next request tries again.
      () => this.#held.get(key) === held && this.#held.delete(key),
    )
    return held
  }
}

const shown = ({ sessionId, allowedMounts, openedAt, usedAt }: Held): VfsLease => ({
  sessionId,
  allowedMounts: [...allowedMounts],
  state: 'open',
  ...(openedAt === undefined ? {} : { openedAt }),
  lastUsedAt: new Date(usedAt).toISOString(),
})

/** The tenant's limits on the server, as the conductor of the newest run sent them. */
function limitsOf({ limits = {} }: RunnerSession): { readonly limits?: VfsLimits } {
  const { vfsBytes: bytes, vfsEntries: entries, vfsSessions: sessions, objects, objectBytes } = limits
  const given = Object.entries({ bytes, entries, sessions, objects, objectBytes }).filter(
    ([, most]) => most !== undefined,
  )
  return given.length === 0 ? {} : { limits: Object.fromEntries(given) as VfsLimits }
}

/** How many mounts are listed at the same time. */
const atOnce = 8

/** The files of a session that are copied into a sandbox. Each mount gets an equal share, however many files the others have. */
async function treeOf(files: Pick<SessionVfs, 'mounts' | 'list'>, signal?: AbortSignal): Promise<VfsTree> {
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

/** Lists the files of one mount. A mount that cannot be listed does not prevent the others from being copied. */
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

/** Errors that concern all mounts of the session, so that they fail the whole copy. */
const mayBeAll: ReadonlySet<string> = new Set([
  vfsErrors.noVfsSession.row.code,
  vfsErrors.vfsUpstreamUnavailable.row.code,
])
