import { randomUUID } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdtemp, open, rename, rm, stat, truncate } from 'node:fs/promises'
import { join } from 'node:path'
import { isClientId } from '#contracts/ids'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { StateBundle } from '#contracts/runtime'
import { archiveErrors, pack, unpack } from '#kit/archive'
import type { Root } from './root.ts'

/** A conversation for the length of one run. */
export interface Conversation {
  /** The vendor's folder of the session. No other session's folder is reachable from it. */
  readonly folder: string
  /** The vendor's id of the conversation. */
  readonly id: string
  /** True when an earlier run started the conversation. */
  readonly resumes: boolean
}

/**
 * The conversations of this process: one folder per session, in which the vendor writes a single file. Bounded: the least recently used ones go first,
 * and conductors have copies.
 */
export interface Conversations {
  has(sessionId: string): boolean
  /** Begins a run. Removes what an earlier attempt of the run left, because the turn is repeated. */
  begin(envelope: Pick<RunEnvelope, 'sessionId' | 'runId' | 'attempt'>): Promise<Conversation>
  /** Must be called after `begin`, when the vendor's process is gone. `keeps`: the model wrote something that the next run must know. */
  settle(sessionId: string, keeps: boolean): Promise<void>
  exportState(sessionId: string): Promise<StateBundle | undefined>
  hydrate(sessionId: string, bundle: StateBundle): Promise<void>
  forget(sessionId: string): Promise<void>
}

interface ConversationLimits {
  readonly sessions: number
  readonly totalBytes: number
}
const usualLimits: ConversationLimits = { sessions: 10_000, totalBytes: 2 * 1024 * 1024 * 1024 }

interface Session {
  readonly id: string
  /** True while a run is in it. */
  readonly busy: boolean
  /** How many bytes of the conversation's file belong to finished turns. */
  readonly bytes: number
  /** The last run, and the size of the file before it. The vendor only appends. */
  readonly last?: { readonly runId: string; readonly bytes: number }
}

/** One name for all projects, because the vendor would otherwise derive it from a path of this machine. */
export const projectName = 'session'

const fileOf = (id: string): string => `projects/${projectName}/${id}.jsonl`
const idOf = (name: string): string | undefined =>
  new RegExp(`^projects/${projectName}/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\\.jsonl$`).exec(name)?.[1]

const folderIn = (root: Root, sessionId: string): string => join(root.path, 'sessions', sessionId)

/** Removes the first conversations until the limits are kept. The newest always stays, because no conductor has had the time to fetch it. */
async function evict(
  root: Root,
  sessions: Map<string, Session>,
  limits: ConversationLimits,
  newest: string,
): Promise<void> {
  let total = sessions.values().reduce((sum, { bytes }) => sum + bytes, 0)
  for (const [sessionId, { bytes, busy }] of sessions) {
    if (sessions.size <= limits.sessions && total <= limits.totalBytes) return
    if (busy || sessionId === newest) continue
    total -= bytes
    sessions.delete(sessionId)
    // Renamed first, so that nothing is removed of a conversation that is restored there meanwhile.
    const gone = join(root.path, `gone-${randomUUID()}`)
    await rename(folderIn(root, sessionId), gone).catch(() => {})
    await rm(gone, { recursive: true, force: true, maxRetries: 3 })
  }
}

export function createConversations(root: Root, limits: ConversationLimits = usualLimits): Conversations {
  /** The least recently used one first. */
  const sessions = new Map<string, Session>()
  const keep = (sessionId: string, session: Session): void => {
    sessions.delete(sessionId)
    sessions.set(sessionId, session)
  }
  const folderOf = (sessionId: string): string => folderIn(root, sessionId)
  const remove = (sessionId: string): Promise<void> =>
    rm(folderOf(sessionId), { recursive: true, force: true, maxRetries: 3 })
  const fresh = async (sessionId: string): Promise<Session> => {
    // Use a new id, because the vendor refuses to begin a conversation whose file exists.
    await remove(sessionId)
    return { id: randomUUID(), bytes: 0, busy: false }
  }
  return {
    has(sessionId) {
      const session = sessions.get(sessionId)
      // Check the file, because machines remove old temporary files after some days.
      return session !== undefined && session.bytes > 0 && existsSync(join(folderOf(sessionId), fileOf(session.id)))
    },
    async begin({ sessionId, runId, attempt = 1 }) {
      const folder = folderOf(sessionId)
      const known = sessions.get(sessionId)
      const again = attempt > 1 && known?.last?.runId === runId
      const bytes = (again ? known.last?.bytes : known?.bytes) ?? 0
      const session = known && bytes > 0 ? { ...known, bytes } : await fresh(sessionId)
      if (bytes > 0) await truncate(join(folder, fileOf(session.id)), bytes)
      keep(sessionId, { ...session, busy: true, last: { runId, bytes } })
      return { folder, id: session.id, resumes: bytes > 0 }
    },
    async settle(sessionId, keeps) {
      const session = sessions.get(sessionId)
      // The session was forgotten in the meantime.
      if (!session?.last) return remove(sessionId)
      const over = { ...session, busy: false }
      keep(sessionId, over)
      const file = join(folderOf(sessionId), fileOf(session.id))
      const before = session.last.bytes
      const bytes = keeps ? await lastTurn(file, before) : before
      if (bytes > 0) await truncate(file, bytes)
      keep(sessionId, { ...over, bytes })
      await evict(root, sessions, limits, sessionId)
    },
    async exportState(sessionId) {
      const session = sessions.get(sessionId)
      if (!session || session.bytes === 0) return undefined
      const files = [{ name: fileOf(session.id), bytes: session.bytes }]
      const bytes = await pack(folderOf(sessionId), files)
      return { bytes, contentType: 'application/gzip', runtimeSessionId: session.id }
    },
    async hydrate(sessionId, bundle) {
      if (!isClientId(sessionId)) throw archiveErrors.invalidState()
      await root.folder('sessions')
      const incoming = await mkdtemp(join(root.path, 'incoming-'))
      try {
        const found: string[] = []
        const arrived = join(incoming, 'session')
        await unpack(bundle.bytes, arrived, (name) => idOf(name) !== undefined && found.push(name) === 1)
        const id = idOf(found[0]!)!
        const file = join(arrived, fileOf(id))
        const { size } = await stat(file)
        if (size === 0 || (await lastTurn(file, 0)) !== size) throw archiveErrors.invalidState()
        await remove(sessionId)
        await rename(arrived, folderOf(sessionId))
        keep(sessionId, { id, bytes: size, busy: false })
        await evict(root, sessions, limits, sessionId)
      } finally {
        await rm(incoming, { recursive: true, force: true })
      }
    },
    async forget(sessionId) {
      if (!sessions.delete(sessionId)) return
      await remove(sessionId)
    },
  }
}

const said = Buffer.from('"type":"user"')

/**
 * The end of the last complete line of a file if there is a message after `from`, otherwise `from`. A killed process leaves half a line, or a file
 * without any message, both of which the vendor refuses.
 */
async function lastTurn(file: string, from: number): Promise<number> {
  const handle = await open(file).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw error
  })
  if (!handle) return from
  try {
    const { size } = await handle.stat()
    const added = Buffer.alloc(Math.max(0, size - from))
    const { bytesRead } = await handle.read(added, 0, added.length, from)
    const whole = added.subarray(0, bytesRead).lastIndexOf(0x0a) + 1
    return added.subarray(0, whole).includes(said) ? from + whole : from
  } finally {
    await handle.close()
  }
}
