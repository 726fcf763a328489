import { randomUUID } from 'node:crypto'
import { mkdir, open, readdir, readFile, rename, rm, stat, utimes } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { isClientId } from '#contracts/ids'
import { overLimit } from '#contracts/limits'
import { mostObjectsAtOnce, type ObjectBackend } from '#contracts/object-store'
import type { ErasedPart } from '#contracts/retention'
import type { OpenVfsSession, VfsLimits, VfsSession } from '#contracts/vfs'
import { vfsErrors } from '#contracts/vfs'
import { Turns } from '#kit/turns'
import { type Account, count, type Counts, removeSome, sessionAccount, tenantAccount } from './usage.ts'

/** Milliseconds. The time of last use on disk is updated at most this often. */
const touchMs = 60_000
/** For so long one part of an erasure deletes: whoever asked for it waits a few seconds for the answer, which counts what is gone. */
const partMs = 1_000

/** The record of an open session on disk. */
interface Kept {
  readonly sessionId: string
  /** The folder of the session's files. A session that is opened again after closing gets a new folder, which never contains older files. */
  readonly space: string
  readonly openedAt: string
  readonly profile?: string
  readonly runtime?: string
  readonly allowedMounts: readonly string[]
}

export interface Session {
  kept: Kept
  lastUsedAt: number
  touchedAt: number
  /** The usage of the session's files, counted at the first request. */
  counts: Promise<Counts> | undefined
}

interface Tenant {
  readonly sessions: Map<string, Session>
  counts: Counts
  /** The limits that came with the tenant's newest lease. One of an older runner lacks some of them. */
  limits: VfsLimits
}

interface Options {
  readonly dir: string
  readonly files: ObjectBackend
  /** The default limits of a tenant. */
  readonly defaults: (tenantId: string) => Required<VfsLimits>
  readonly perSession: Readonly<Counts>
  readonly onFailed: (err: unknown, what: string) => void
}

/**
 * Open sessions. Each has an atomically written record on disk, and its files are in the store. A session is open as long as its record exists;
 * files without a record are removed.
 */
export class Sessions {
  readonly #options: Options
  readonly #tenants = new Map<string, Promise<Tenant>>()
  readonly #loaded = new Map<string, Tenant>()
  /** Removals of files that are under way, with their tenants. */
  readonly #sweeping = new Map<Promise<void>, string>()
  /** Openings and closings of a session run one after another, so that the record on disk is that of the last one. */
  readonly #turns = new Turns()

  constructor(options: Options) {
    this.#options = options
  }

  /** Opens a session, or gives an open session a new lease. */
  open(tenantId: string, sessionId: string, lease: OpenVfsSession): Promise<VfsSession> {
    return this.#turns.take(`${tenantId}/${sessionId}`, () => this.#openOne(tenantId, sessionId, lease))
  }
  async #openOne(tenantId: string, sessionId: string, { limits, ...lease }: OpenVfsSession): Promise<VfsSession> {
    const tenant = await this.#tenant(tenantId)
    if (limits) tenant.limits = limits
    const before = tenant.sessions.get(sessionId)
    const most = this.#limitsOf(tenantId, tenant).sessions
    if (!before && tenant.sessions.size >= most) throw overLimit('vfsSessions', most)
    const kept: Kept = {
      sessionId,
      space: before?.kept.space ?? randomUUID(),
      openedAt: before?.kept.openedAt ?? new Date().toISOString(),
      ...lease,
      allowedMounts: lease.allowedMounts ?? [],
    }
    const now = Date.now()
    const session: Session = before ?? {
      kept,
      lastUsedAt: now,
      touchedAt: now,
      counts: Promise.resolve({ bytes: 0, entries: 0 }),
    }
    session.kept = kept
    session.lastUsedAt = now
    // Counted before the first await, so that concurrent opens cannot exceed the limit together.
    tenant.sessions.set(sessionId, session)
    try {
      await writeWhole(this.#recordOf(tenantId, sessionId), JSON.stringify(kept))
    } catch (error) {
      if (!before) tenant.sessions.delete(sessionId)
      throw error
    }
    return this.#shown(tenantId, session)
  }

  /** Returns the session and marks it as used; throws 404 when it is not open. */
  async use(tenantId: string, sessionId: string): Promise<Session> {
    const session = (await this.#tenant(tenantId)).sessions.get(sessionId)
    if (!session) throw vfsErrors.noVfsSession()
    session.lastUsedAt = Date.now()
    if (session.lastUsedAt - session.touchedAt > touchMs) {
      session.touchedAt = session.lastUsedAt
      const at = new Date(session.lastUsedAt)
      void utimes(this.#recordOf(tenantId, sessionId), at, at).catch(() => {})
    }
    return session
  }

  /** Whether the session is open, without marking it as used. */
  async isOpen(tenantId: string, sessionId: string): Promise<boolean> {
    return (await this.#tenant(tenantId)).sessions.has(sessionId)
  }

  /** What the session's writes count for. */
  async accounts(tenantId: string, session: Session): Promise<readonly Account[]> {
    const tenant = await this.#tenant(tenantId)
    return [
      tenantAccount(tenant.counts, () => this.#limitsOf(tenantId, tenant)),
      sessionAccount(await this.#countsOf(tenantId, session), this.#options.perSession),
    ]
  }
  #countsOf(tenantId: string, session: Session): Promise<Counts> {
    session.counts ??= count(this.#options.files, tenantId, `${session.kept.space}/`)
    session.counts.catch(() => (session.counts = undefined))
    return session.counts
  }

  async show(tenantId: string, sessionId: string): Promise<VfsSession> {
    const session = (await this.#tenant(tenantId)).sessions.get(sessionId)
    if (!session) throw vfsErrors.noVfsSession()
    return this.#shown(tenantId, session)
  }

  async list(tenantId: string, after: string, limit: number): Promise<{ sessions: VfsSession[]; cursor?: string }> {
    const { sessions } = await this.#tenant(tenantId)
    const ids = [...sessions.keys()].filter((id) => id > after).toSorted()
    const page = ids.slice(0, limit)
    return {
      sessions: await Promise.all(page.map((id) => this.#shown(tenantId, sessions.get(id)!))),
      ...(ids.length > limit ? { cursor: page.at(-1)! } : {}),
    }
  }

  /** Closes a session. Its files disappear at once, and are soon removed from the disk. Resolves to false if it was not open. */
  close(tenantId: string, sessionId: string): Promise<boolean> {
    return this.#turns.take(`${tenantId}/${sessionId}`, async () => {
      const { sessions } = await this.#tenant(tenantId)
      const session = sessions.get(sessionId)
      if (!session) return false
      await rm(this.#recordOf(tenantId, sessionId), { force: true })
      sessions.delete(sessionId)
      this.#drop(tenantId, session.kept.space)
      return true
    })
  }

  /** The limits of a tenant on this server. */
  async limitsOf(tenantId: string): Promise<Required<VfsLimits>> {
    return this.#limitsOf(tenantId, await this.#tenant(tenantId))
  }

  async usage(tenantId: string) {
    const { counts, sessions } = await this.#tenant(tenantId)
    return { ...counts, sessions: sessions.size }
  }

  /**
   * Closes the tenant's sessions and deletes some of its files, for about a second. Resolves to the number deleted, and whether there is more. Nothing
   * more is begun once the signal has aborted.
   */
  async erase(tenantId: string, signal: AbortSignal): Promise<ErasedPart> {
    const until = AbortSignal.any([signal, AbortSignal.timeout(partMs)])
    const { sessions, counts } = await this.#tenant(tenantId)
    let deleted = 0
    for (const id of sessions.keys()) {
      if (until.aborted) break
      await rm(this.#recordOf(tenantId, id), { force: true })
      sessions.delete(id)
      deleted++
    }
    await this.settled(tenantId)
    if (until.aborted) return { deleted, more: true }
    const gone = await removeSome(this.#options.files, [tenantId, ''], counts, until).catch((error: unknown) => {
      // The closed sessions are counted, and the next part says what is wrong.
      if (deleted === 0) throw error
      return { objects: 0, more: true }
    })
    return { deleted: deleted + gone.objects, more: gone.more }
  }

  /**
   * Closes sessions unused since `before` (milliseconds since the epoch), and removes files without a session. Resolves to the ids of the closed
   * sessions.
   */
  async sweep(tenantId: string, before: number): Promise<readonly string[]> {
    const { sessions } = await this.#tenant(tenantId)
    const idle = [...sessions].filter(([, { lastUsedAt }]) => lastUsedAt < before).map(([id]) => id)
    for (const id of idle) await this.close(tenantId, id)
    for (let after: string | undefined = ''; after !== undefined;) {
      const query = { prefix: '', after, limit: mostObjectsAtOnce, folders: true }
      const page: Awaited<ReturnType<ObjectBackend['list']>> = await this.#options.files.list(tenantId, query)
      // The sessions are read after the list, because a session is known before its first file exists.
      const known = new Set([...sessions.values()].map(({ kept }) => kept.space))
      for (const space of page.prefixes) if (!known.has(space.slice(0, -1))) this.#drop(tenantId, space.slice(0, -1))
      after = page.next
    }
    return idle
  }

  /** Sets or lifts the legal hold of a tenant. When it resolves, what was being deleted is gone, and nothing more goes. */
  hold(tenantId: string, held: boolean): Promise<void> {
    return this.#turns.take(tenantId, async () => {
      if (!held) return rm(this.#holdOf(tenantId), { force: true })
      await writeWhole(this.#holdOf(tenantId), '')
      await this.settled(tenantId)
    })
  }

  /** Does work that deletes, unless the tenant is under a legal hold: then it resolves to undefined. One that is set meanwhile waits for its end. */
  unlessHeld<T>(tenantId: string, work: () => Promise<T>): Promise<T | undefined> {
    return this.#turns.take(tenantId, async () => ((await this.isHeld(tenantId)) ? undefined : work()))
  }

  /** Whether the tenant is under a legal hold, as far as this server was told. */
  isHeld(tenantId: string): Promise<boolean> {
    return stat(this.#holdOf(tenantId)).then(
      () => true,
      (error: NodeJS.ErrnoException) => (error.code === 'ENOENT' ? false : Promise.reject(error)),
    )
  }

  /** The tenants that have data on this server. */
  async tenants(): Promise<readonly string[]> {
    const names = await readdir(join(this.#options.dir, 'tenants')).catch(() => [])
    return names.filter((name) => name.startsWith('+')).map((name) => name.slice(1))
  }

  /** The number of open sessions, of the tenants that were loaded. */
  get size(): number {
    let all = 0
    for (const { sessions } of this.#loaded.values()) all += sessions.size
    return all
  }

  /** Resolves when the files of closed sessions are removed: of one tenant, for which no other one is waited for, or of all. */
  async settled(ofTenant?: string): Promise<void> {
    const sweeping = [...this.#sweeping]
    await Promise.all(sweeping.flatMap(([done, id]) => (ofTenant === undefined || id === ofTenant ? [done] : [])))
  }

  #drop(tenantId: string, space: string): void {
    const work = async (): Promise<void> => {
      const { counts } = await this.#tenant(tenantId)
      while ((await removeSome(this.#options.files, [tenantId, `${space}/`], counts)).more);
    }
    const sweeping = work()
      .catch((err: unknown) =>
        this.#options.onFailed(err, 'files of a closed session could not be removed; they are swept later'),
      )
      .finally(() => this.#sweeping.delete(sweeping))
    this.#sweeping.set(sweeping, tenantId)
  }

  async #shown(tenantId: string, session: Session): Promise<VfsSession> {
    const counts = await this.#countsOf(tenantId, session)
    const { space: _, allowedMounts, ...kept } = session.kept
    return {
      ...kept,
      allowedMounts: [...allowedMounts],
      state: 'open',
      lastUsedAt: new Date(session.lastUsedAt).toISOString(),
      bytes: counts.bytes,
      entries: counts.entries,
    }
  }

  #limitsOf(tenantId: string, { limits }: Tenant): Required<VfsLimits> {
    return { ...this.#options.defaults(tenantId), ...limits }
  }

  #tenant(tenantId: string): Promise<Tenant> {
    const loading = this.#tenants.get(tenantId) ?? this.#load(tenantId)
    this.#tenants.set(tenantId, loading)
    loading.catch(() => this.#tenants.delete(tenantId))
    return loading
  }

  async #load(tenantId: string): Promise<Tenant> {
    const { bytes, objects: entries } = await this.#options.files.use(tenantId)
    const sessions = new Map<string, Session>()
    const folder = dirname(this.#recordOf(tenantId, 'x'))
    for (const name of await readdir(folder).catch(() => [])) {
      const id = /^(.+)\.json$/.exec(name)?.[1]
      if (id === undefined || !isClientId(id)) {
        // A process that died during a write left this file.
        await rm(join(folder, name), { force: true })
        continue
      }
      const path = join(folder, name)
      const kept = JSON.parse(await readFile(path, 'utf8')) as Kept
      const { mtimeMs } = await stat(path)
      sessions.set(id, { kept, lastUsedAt: mtimeMs, touchedAt: mtimeMs, counts: undefined })
    }
    const tenant = { sessions, counts: { bytes, entries }, limits: {} }
    this.#loaded.set(tenantId, tenant)
    return tenant
  }

  /** The file that stands for the legal hold of a tenant. */
  #holdOf(tenantId: string): string {
    return join(this.#options.dir, 'tenants', `+${tenantId}`, 'held')
  }
  #recordOf(tenantId: string, sessionId: string): string {
    return join(this.#options.dir, 'tenants', `+${tenantId}`, 'sessions', `${sessionId}.json`)
  }
}

/** Writes a file atomically. A reader finds either the old or the new text, even after a loss of power. */
export async function writeWhole(path: string, text: string): Promise<void> {
  const folder = dirname(path)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const next = `${path}.${randomUUID()}`
  const file = await open(next, 'wx', 0o600)
  try {
    await file.writeFile(text)
    await file.sync()
  } finally {
    await file.close()
  }
  await rename(next, path)
  const at = await open(folder, 'r')
  try {
    await at.sync()
  } finally {
    await at.close()
  }
}
