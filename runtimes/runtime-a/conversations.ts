import { randomUUID } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdtemp, open, rename, rm, stat, truncate } from 'node:fs/promises'
import { join } from 'node:path'
import { isClientId } from '#contracts/ids'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { StateBundle } from '#contracts/runtime'
import { archiveErrors, pack, unpack } from '#kit/archive'
import {
  type ConversationLimits,
  holdsTooMuch,
  type KeptConversation,
  usualLimits,
  whatGoes,
} from '#kit/kept-conversations'
import { runtimeAErrors } from './errors.ts'
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
 * The conversations of this process: one folder per session, in which the vendor writes a single file. Bounded, see `whatGoes`.
 */
export interface Conversations {
  has(sessionId: string): boolean
  /**
   * Begins a run. Removes what an earlier attempt of the run left, because the turn is repeated. Rejects with AppError `runtime_busy` when runs of the
   * tenant are in too large conversations.
   */
  begin(envelope: Pick<RunEnvelope, 'tenantId' | 'sessionId' | 'runId' | 'attempt'>): Promise<Conversation>
  /** Must be called after `begin`, when the vendor's process is gone. `keeps`: the model wrote something that the next run must know. */
  settle(sessionId: string, keeps: boolean): Promise<void>
  exportState(sessionId: string): Promise<StateBundle | undefined>
  hydrate(sessionId: string, bundle: StateBundle): Promise<void>
  forget(sessionId: string): Promise<void>
}

/** Its `bytes` are those of the conversation's file that belong to finished turns. */
interface Session extends KeptConversation {
  readonly id: string
  /** The last run, and the size of the file before it. The vendor only appends. */
  readonly last?: { readonly runId: string; readonly bytes: number }
}

/** One name for all projects, because the vendor would otherwise derive it from a path of this machine. */
export const projectName = 'session'

const fileOf = (id: string): string => `projects/${projectName}/${id}.jsonl`
const idOf = (name: string): string | undefined =>
  new RegExp(`^projects/${projectName}/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\\.jsonl$`).exec(name)?.[1]

const folderIn = (root: Root, sessionId: string): string => join(root.path, 'sessions', sessionId)

/** Removes what has to go for the limits. */
async function evict(root: Root, sessions: Map<string, Session>, limits: ConversationLimits, newest: string) {
  const renamed = whatGoes(sessions, limits, newest).map(async (sessionId) => {
    sessions.delete(sessionId)
    // Renamed first, and all at once, so that nothing is removed of a conversation that is restored there meanwhile.
    const gone = join(root.path, `gone-${randomUUID()}`)
    await rename(folderIn(root, sessionId), gone).catch(() => {})
    return gone
  })
  for (const gone of renamed) await rm(await gone, { recursive: true, force: true, maxRetries: 3 })
}

/** Keeps it as the most recently used one. */
function keepIn(sessions: Map<string, Session>, sessionId: string, session: Session): void {
  sessions.delete(sessionId)
  sessions.set(sessionId, session)
}

export function createConversations(root: Root, limits: ConversationLimits = usualLimits): Conversations {
  /** The least recently used one first. */
  const sessions = new Map<string, Session>()
  const keep = (sessionId: string, session: Session): void => keepIn(sessions, sessionId, session)
  const folderOf = (sessionId: string): string => folderIn(root, sessionId)
  const remove = (sessionId: string): Promise<void> =>
    rm(folderOf(sessionId), { recursive: true, force: true, maxRetries: 3 })
  /** Replaces what `session` was at the beginning, unless it was forgotten in the meantime. */
  const end = (sessionId: string, session: Session, bytes: number): void => {
    if (sessions.get(sessionId) === session) keep(sessionId, { ...session, bytes, busy: false, copied: bytes === 0 })
  }
  return {
    has(sessionId) {
      const session = sessions.get(sessionId)
      // Check the file, because machines remove old temporary files after some days.
      return session !== undefined && session.bytes > 0 && existsSync(join(folderOf(sessionId), fileOf(session.id)))
    },
    async begin({ tenantId, sessionId, runId, attempt = 1 }) {
      if (holdsTooMuch(sessions, limits, tenantId)) throw runtimeAErrors.runtimeBusy()
      const folder = folderOf(sessionId)
      const known = sessions.get(sessionId)
      const bytes = (attempt > 1 && known?.last?.runId === runId ? known.last : known)?.bytes ?? 0
      // Use a new id for a new conversation, because the vendor refuses to begin one whose file exists.
      const id = known && bytes > 0 ? known.id : randomUUID()
      const session = { id, tenantId, bytes, busy: true, copied: false, last: { runId, bytes } }
      // Before anything is waited for, because it could go meanwhile.
      keep(sessionId, session)
      const cleared = bytes > 0 ? truncate(join(folder, fileOf(id)), bytes) : remove(sessionId)
      await cleared.catch((error: unknown) => {
        end(sessionId, session, bytes)
        throw error
      })
      return { folder, id, resumes: bytes > 0 }
    },
    async settle(sessionId, keeps) {
      const session = sessions.get(sessionId)
      // The session was forgotten in the meantime.
      if (!session?.last) return remove(sessionId)
      const file = join(folderOf(sessionId), fileOf(session.id))
      let bytes = session.last.bytes
      try {
        bytes = await cut(file, bytes, keeps)
      } finally {
        end(sessionId, session, bytes)
      }
      await evict(root, sessions, limits, sessionId)
    },
    async exportState(sessionId) {
      const session = sessions.get(sessionId)
      if (!session || session.bytes === 0) return undefined
      const bytes = await pack(folderOf(sessionId), [{ name: fileOf(session.id), bytes: session.bytes }])
      // A run that began meanwhile makes this an old copy.
      if (!session.busy && sessions.get(sessionId) === session) sessions.set(sessionId, { ...session, copied: true })
      return { bytes, contentType: 'application/gzip', runtimeSessionId: session.id }
    },
    async hydrate(sessionId, bundle) {
      if (!isClientId(sessionId)) throw archiveErrors.invalidState()
      await root.folder('sessions')
      const incoming = await mkdtemp(join(root.path, 'incoming-'))
      try {
        const arrived = join(incoming, 'session')
        const found = await unpacked(bundle, arrived)
        const tenantId = sessions.get(sessionId)?.tenantId
        // First, because the one that arrives would go in the place of the old one.
        sessions.delete(sessionId)
        await remove(sessionId)
        await rename(arrived, folderOf(sessionId))
        keep(sessionId, { ...found, tenantId, busy: false, copied: true })
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

/** Unpacks a bundle. Throws AppError `invalid_state` when it is not one conversation. */
async function unpacked(bundle: StateBundle, folder: string): Promise<Pick<Session, 'id' | 'bytes'>> {
  const found: string[] = []
  await unpack(bundle.bytes, folder, (name) => idOf(name) !== undefined && found.push(name) === 1)
  const id = idOf(found[0]!)!
  const file = join(folder, fileOf(id))
  const { size } = await stat(file)
  if (size === 0 || (await lastTurn(file, 0)) !== size) throw archiveErrors.invalidState()
  return { id, bytes: size }
}

/** Cuts off what the next run must not find behind the first `before` bytes. Resolves to what remains. */
async function cut(file: string, before: number, keeps: boolean): Promise<number> {
  const bytes = keeps ? await lastTurn(file, before) : before
  if (bytes > 0) await truncate(file, bytes)
  return bytes
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
