import { randomUUID } from 'node:crypto'
import { glob, mkdir, mkdtemp, open, readdir, rm, stat, truncate } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { StateBundle } from '#contracts/runtime'
import type { RunEnvelope } from '#contracts/run-envelope'
import { pack, unpack } from '#kit/archive'
import {
  type ConversationLimits,
  holdsTooMuch,
  type KeptConversation,
  usualLimits,
  whatGoes,
} from '#kit/kept-conversations'
import { runtimeBErrors } from './errors.ts'

/** The folder of one session. It contains nothing of another session, and nothing of the machine's user. */
interface Home {
  /** The process's `CODEX_HOME`. */
  readonly folder: string
  /** The id of the conversation. Undefined until there is one. */
  readonly threadId: string | undefined
}

const conversations = 'sessions'

interface Entry extends KeptConversation {
  readonly folder: string
  /** The file of the conversation, in the folder of conversations. */
  rollout?: string | undefined
  tenantId: string | undefined
  bytes: number
  busy: boolean
  copied: boolean
  /** The last run, and the size of the file before that run. */
  run?: { readonly id: string; readonly before: number }
}

/** The conversations of this process, as files. Bounded, see `whatGoes`. */
export class Homes {
  readonly #limits: ConversationLimits
  /** Made for the first session, because many roles have this runtime and never use it. */
  #root: Promise<string> | undefined
  /** A Map keeps insertion order: re-inserting on use puts the least recently used session first. */
  readonly #entries = new Map<string, Entry>()

  constructor(limits: ConversationLimits = usualLimits) {
    this.#limits = limits
  }

  has(sessionId: string): boolean {
    return this.#entries.get(sessionId)?.rollout !== undefined
  }

  /**
   * Gives a run its home. Removes what an earlier attempt of the run left. Rejects with AppError `runtime_busy` when runs of the tenant are in too
   * large conversations.
   */
  async enter({
    tenantId,
    sessionId,
    runId,
    attempt = 1,
  }: Pick<RunEnvelope, 'tenantId' | 'sessionId' | 'runId' | 'attempt'>): Promise<Home> {
    if (holdsTooMuch(this.#entries, this.#limits, tenantId)) throw runtimeBErrors.runtimeBusy()
    const entry = this.#entries.get(sessionId) ?? (await this.#fresh())
    entry.tenantId = tenantId
    entry.busy = true
    entry.copied = false
    this.#touch(sessionId, entry)
    try {
      if (attempt > 1 && entry.run?.id === runId) await this.#cut(entry, entry.run.before)
    } catch (error) {
      entry.busy = false
      throw error
    }
    entry.run = { id: runId, before: entry.bytes }
    const { folder, rollout } = entry
    return { folder, threadId: rollout === undefined ? undefined : threadIdOf(rollout) }
  }

  /** Called when the run's process is gone. `kept`: the model wrote something, so the turn is part of the conversation. */
  async leave(sessionId: string, home: Home, kept: boolean): Promise<void> {
    const entry = this.#entries.get(sessionId)
    // The session was forgotten or replaced while its run ended.
    if (entry?.folder !== home.folder) return rm(home.folder, { recursive: true, force: true })
    try {
      // The program rebuilds its databases from the conversation, so these 0.5 MB per session are removed.
      const others = (await readdir(entry.folder)).filter((name) => name !== conversations)
      await Promise.all(others.map((name) => rm(join(entry.folder, name), { recursive: true, force: true })))
      await this.#measure(entry)
      if (!kept) await this.#cut(entry, entry.run?.before ?? 0)
    } finally {
      entry.busy = false
    }
    if (entry.rollout === undefined) await this.forget(sessionId)
    else this.#touch(sessionId, entry)
    await this.#evict(sessionId)
  }

  async exportState(sessionId: string): Promise<StateBundle | undefined> {
    const entry = this.#entries.get(sessionId)
    if (entry?.rollout === undefined) return undefined
    const { busy, run } = entry
    const bytes = await pack(join(entry.folder, conversations), [entry.rollout])
    // A run that began meanwhile makes this an old copy.
    if (!busy && !entry.busy && entry.run === run) entry.copied = true
    return { bytes, contentType: 'application/gzip', runtimeSessionId: threadIdOf(entry.rollout) }
  }

  /** Throws AppError `invalid_state`. The session then keeps what it had. */
  async hydrate(sessionId: string, bytes: Uint8Array): Promise<void> {
    const entry = await this.#fresh()
    try {
      let files = 0
      await unpack(bytes, join(entry.folder, conversations), (name) => isRolloutName(name) && ++files === 1)
      await this.#measure(entry)
      if (!(await isRolloutOf(pathOf(entry), threadIdOf(entry.rollout!)))) throw runtimeBErrors.invalidState()
    } catch (error) {
      await rm(entry.folder, { recursive: true, force: true })
      throw error
    }
    entry.tenantId = this.#entries.get(sessionId)?.tenantId
    entry.copied = true
    await this.forget(sessionId)
    this.#entries.set(sessionId, entry)
    await this.#evict(sessionId)
  }

  async forget(sessionId: string): Promise<void> {
    const entry = this.#entries.get(sessionId)
    if (!entry) return
    this.#entries.delete(sessionId)
    await rm(entry.folder, { recursive: true, force: true })
  }

  async close(): Promise<void> {
    this.#entries.clear()
    if (this.#root) await rm(await this.#root, { recursive: true, force: true, maxRetries: 3 })
  }

  async #fresh(): Promise<Entry> {
    this.#root ??= mkdtemp(join(tmpdir(), 'agent-orc-runtime-b-'))
    const folder = join(await this.#root, randomUUID())
    await mkdir(folder, { mode: 0o700 })
    return { folder, tenantId: undefined, bytes: 0, busy: false, copied: false }
  }

  /** Finds the conversation in the folder, repairs a torn end, and measures the file. */
  async #measure(entry: Entry): Promise<void> {
    entry.rollout = (await findRollouts(join(entry.folder, conversations))).at(-1)
    if (entry.rollout !== undefined) await mendRollout(pathOf(entry))
    entry.bytes = entry.rollout === undefined ? 0 : await sizeOf(pathOf(entry))
  }

  /** Takes back what is behind `before`. */
  async #cut(entry: Entry, before: number): Promise<void> {
    if (entry.rollout === undefined) return
    await cutRollout(pathOf(entry), before)
    await this.#measure(entry)
  }

  #touch(sessionId: string, entry: Entry): void {
    this.#entries.delete(sessionId)
    this.#entries.set(sessionId, entry)
  }

  async #evict(newest: string): Promise<void> {
    const folders = whatGoes(this.#entries, this.#limits, newest).map((sessionId) => {
      const { folder } = this.#entries.get(sessionId)!
      this.#entries.delete(sessionId)
      return folder
    })
    for (const folder of folders) await rm(folder, { recursive: true, force: true })
  }
}

const pathOf = ({ folder, rollout }: Entry): string => join(folder, conversations, rollout!)

/** `2026/11/21/rollout-2026-11-21T17-51-23-<thread id>.jsonl`: the only file that Codex needs to continue a conversation. */
const form =
  /^\d{4}\/\d{2}\/\d{2}\/rollout-\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.jsonl$/

const isRolloutName = (name: string): boolean => form.test(name)
const threadIdOf = (name: string): string => form.exec(name)![1]!

/** The conversations in a folder, relative to it. A session has one. */
async function findRollouts(folder: string): Promise<string[]> {
  const names: string[] = []
  for await (const name of glob('*/*/*/*.jsonl', { cwd: folder })) if (isRolloutName(name)) names.push(name)
  return names.toSorted()
}

const sizeOf = async (path: string): Promise<number> => (await stat(path)).size

/** Cuts a conversation's file to `size` bytes, and removes the file when nothing remains. */
async function cutRollout(path: string, size: number): Promise<void> {
  if (size === 0) await rm(path, { force: true })
  else if ((await sizeOf(path)) > size) await truncate(path, size)
}

const newline = 0x0a
const readBytes = 64 * 1024

/** Drops an incomplete last line: the process died while writing it, and would continue after the torn half. */
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

/** Whether the file belongs to this conversation, which its first line says. */
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
