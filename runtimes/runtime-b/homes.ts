import { randomUUID } from 'node:crypto'
import { glob, mkdir, mkdtemp, open, readdir, rm, stat, truncate } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { StateBundle } from '#contracts/runtime'
import { pack, unpack } from '#kit/archive'
import { corruptState } from './errors.ts'

/** The folder of one session: nothing of another one, and nothing of the machine's user. */
interface Home {
  /** The process's `CODEX_HOME`. */
  readonly folder: string
  /** Of the conversation, once there is one. */
  readonly threadId: string | undefined
}

/** The conversations of this process, as files. Bounded: the least recently used ones go first, and conductors have copies. */
export interface Homes {
  has(sessionId: string): boolean
  /** For one run. `again`: what a former attempt of it has left is taken back. */
  enter(sessionId: string, runId: string, again: boolean): Promise<Home>
  /** Its process is gone. `kept`: the model said something, so that the turn is part of the conversation. */
  leave(sessionId: string, home: Home, kept: boolean): Promise<void>
  exportState(sessionId: string): Promise<StateBundle | undefined>
  hydrate(sessionId: string, bytes: Uint8Array): Promise<void>
  forget(sessionId: string): Promise<void>
  close(): Promise<void>
}

interface HomeLimits {
  readonly sessions: number
  readonly totalBytes: number
}
const defaults: HomeLimits = { sessions: 10_000, totalBytes: 2 * 1024 * 1024 * 1024 }

const conversations = 'sessions'

interface Entry {
  readonly folder: string
  /** The file of the conversation, in the folder of conversations. */
  rollout?: string | undefined
  size: number
  busy: boolean
  /** The last run, and how long the file was before it. */
  run?: { readonly id: string; readonly before: number }
}

export function createHomes(limits: HomeLimits = defaults): Homes {
  // Made when the first session comes: many roles have this runtime and never use it.
  let root: Promise<string> | undefined
  // A Map keeps insertion order: re-inserting on use makes it a list of least recently used sessions.
  const entries = new Map<string, Entry>()
  let total = 0
  const pathOf = ({ folder, rollout }: Entry): string => join(folder, conversations, rollout!)
  const fresh = async (): Promise<Entry> => {
    root ??= mkdtemp(join(tmpdir(), 'agent-orc-runtime-b-'))
    const folder = join(await root, randomUUID())
    await mkdir(folder, { mode: 0o700 })
    return { folder, size: 0, busy: false }
  }
  const resize = (entry: Entry, size: number): void => {
    total += size - entry.size
    entry.size = size
  }
  const remove = async (sessionId: string): Promise<void> => {
    const entry = entries.get(sessionId)
    if (!entry) return
    entries.delete(sessionId)
    resize(entry, 0)
    await rm(entry.folder, { recursive: true, force: true })
  }
  const touch = (sessionId: string, entry: Entry): void => {
    entries.delete(sessionId)
    entries.set(sessionId, entry)
  }
  const evict = async (): Promise<void> => {
    for (const [sessionId, entry] of entries) {
      // The newest always stays: nobody has had the time to fetch it.
      if (entries.size <= 1 || (entries.size <= limits.sessions && total <= limits.totalBytes)) break
      if (!entry.busy) await remove(sessionId)
    }
  }
  const take = async (entry: Entry): Promise<void> => {
    entry.rollout = (await findRollouts(join(entry.folder, conversations))).at(-1)
    if (entry.rollout !== undefined) await mendRollout(pathOf(entry))
    resize(entry, entry.rollout === undefined ? 0 : await sizeOf(pathOf(entry)))
  }
  return {
    has: (sessionId) => entries.get(sessionId)?.rollout !== undefined,
    async enter(sessionId, runId, again) {
      const entry = entries.get(sessionId) ?? (await fresh())
      entry.busy = true
      touch(sessionId, entry)
      if (again && entry.run?.id === runId && entry.rollout !== undefined) {
        await cutRollout(pathOf(entry), entry.run.before)
        await take(entry)
      }
      entry.run = { id: runId, before: entry.size }
      const { folder, rollout } = entry
      return { folder, threadId: rollout === undefined ? undefined : threadIdOf(rollout) }
    },
    async leave(sessionId, home, kept) {
      const entry = entries.get(sessionId)
      // Forgotten, or replaced, while its run ended.
      if (entry?.folder !== home.folder) return rm(home.folder, { recursive: true, force: true })
      // The program's own databases are made anew from the conversation: 0.5 MB a session that nobody needs.
      const others = (await readdir(entry.folder)).filter((name) => name !== conversations)
      await Promise.all(others.map((name) => rm(join(entry.folder, name), { recursive: true, force: true })))
      await take(entry)
      if (!kept && entry.rollout !== undefined) {
        await cutRollout(pathOf(entry), entry.run?.before ?? 0)
        await take(entry)
      }
      entry.busy = false
      if (entry.rollout === undefined) await remove(sessionId)
      else touch(sessionId, entry)
      await evict()
    },
    async exportState(sessionId) {
      const entry = entries.get(sessionId)
      if (entry?.rollout === undefined) return undefined
      const bytes = await pack(join(entry.folder, conversations), [entry.rollout])
      return { bytes, contentType: 'application/gzip', runtimeSessionId: threadIdOf(entry.rollout) }
    },
    async hydrate(sessionId, bytes) {
      const entry = await fresh()
      try {
        let files = 0
        await unpack(bytes, join(entry.folder, conversations), (name) => isRolloutName(name) && ++files === 1)
        await take(entry)
        if (!(await isRolloutOf(pathOf(entry), threadIdOf(entry.rollout!)))) throw corruptState()
      } catch (error) {
        resize(entry, 0)
        await rm(entry.folder, { recursive: true, force: true })
        throw error
      }
      await remove(sessionId)
      entries.set(sessionId, entry)
      await evict()
    },
    forget: remove,
    async close() {
      entries.clear()
      if (root) await rm(await root, { recursive: true, force: true, maxRetries: 3 })
    },
  }
}

/** `2026/11/21/rollout-2026-11-21T17-51-23-<thread id>.jsonl`: all that Codex needs to go on with a conversation. */
const form =
  /^\d{4}\/\d{2}\/\d{2}\/rollout-\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.jsonl$/

const isRolloutName = (name: string): boolean => form.test(name)
const threadIdOf = (name: string): string => form.exec(name)![1]!

/** The conversations in a folder, relative to it; a session has one. */
async function findRollouts(folder: string): Promise<string[]> {
  const names: string[] = []
  for await (const name of glob('*/*/*/*.jsonl', { cwd: folder })) if (isRolloutName(name)) names.push(name)
  return names.toSorted()
}

const sizeOf = async (path: string): Promise<number> => (await stat(path)).size

/** Takes back what was written behind `size`; with nothing before it the whole conversation. */
async function cutRollout(path: string, size: number): Promise<void> {
  if (size === 0) await rm(path, { force: true })
  else if ((await sizeOf(path)) > size) await truncate(path, size)
}

const newline = 0x0a
const readBytes = 64 * 1024

/** Drops a last line without an end: the process died while it wrote it, and would go on behind the torn half. */
async function mendRollout(path: string): Promise<void> {
  const file = await open(path, 'r+')
  try {
    const { size } = await file.stat()
    const buffer = Buffer.alloc(readBytes)
    for (let end = size; end > 0;) {
      const start = Math.max(0, end - readBytes)
      const { bytesRead } = await file.read(buffer, 0, end - start, start)
      const last = buffer.subarray(0, bytesRead).lastIndexOf(newline)
      if (last >= 0) {
        if (start + last + 1 < size) await file.truncate(start + last + 1)
        return
      }
      end = start
    }
    await file.truncate(0)
  } finally {
    await file.close()
  }
}

/** The first line says whose conversation it is. */
async function isRolloutOf(path: string, threadId: string): Promise<boolean> {
  const file = await open(path, 'r')
  try {
    for await (const line of file.readLines()) {
      const { type, payload } = JSON.parse(line) as { type?: unknown; payload?: { id?: unknown } | null }
      return type === 'session_meta' && payload?.id === threadId
    }
    return false
  } catch (error) {
    if (error instanceof SyntaxError || error instanceof TypeError) return false
    throw error
  } finally {
    await file.close()
  }
}
