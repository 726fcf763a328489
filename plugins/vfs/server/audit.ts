import { hash } from 'node:crypto'
import { appendFile, mkdir, open, readdir, readFile, rename, rm, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { VfsAccess, VfsAudit } from '#contracts/vfs'
import type { FastifyBaseLogger } from 'fastify'
import type { Sessions } from './sessions.ts'

/** Bytes of one audit file of a session. A full file replaces the one before it, so a session has at most two such files. */
const fileBytes = 1024 * 1024
/** Lines that may wait for the disk. While more wait, only writes and deletions are recorded. */
const mostWaiting = 10_000
const mostLists = 1_000

interface Line extends VfsAccess {
  /** Counts the lines of a session upwards. A cursor is one of these numbers. */
  readonly n: number
}

interface Open {
  next: number
  bytes: number
  waiting: string[]
  /** Digests of the lists since the last other operation: a repeated list is not recorded again. */
  readonly lists: Set<string>
  writing: Promise<void>
}

/**
 * Records what sessions read and wrote, as JSON lines in a file for each session. A write is recorded before it is answered. A loss of power may
 * lose the last lines.
 */
export class Audit {
  readonly #dirOf: (tenantId: string) => string
  /** By file, the audits of sessions that have something in memory. */
  readonly #open = new Map<string, Promise<Open>>()

  constructor(dirOf: (tenantId: string) => string) {
    this.#dirOf = dirOf
  }

  /** Resolves when the operation is recorded. Never rejects, because the operation has already happened. */
  async note(tenantId: string, sessionId: string, access: Omit<VfsAccess, 'at'>): Promise<void> {
    const file = this.#fileOf(tenantId, sessionId)
    const opening = this.#open.get(file) ?? this.#openFile(file)
    this.#open.set(file, opening)
    const audit = await opening
    if (audit.waiting.length >= mostWaiting && access.operation !== 'write' && access.operation !== 'delete') return
    const list = access.operation === 'list' ? hash('sha256', JSON.stringify(access), 'base64url') : undefined
    if (list !== undefined && audit.lists.has(list)) return
    if (list === undefined || audit.lists.size >= mostLists) audit.lists.clear()
    if (list !== undefined) audit.lists.add(list)
    const line: Line = { n: audit.next++, at: new Date().toISOString(), ...access }
    audit.waiting.push(`${JSON.stringify(line)}\n`)
    // Lines that arrive before this write begins are written together with it.
    if (audit.waiting.length === 1) audit.writing = audit.writing.then(() => this.#write(tenantId, file, audit))
    await audit.writing
  }

  /** The recorded operations of a session, newest first; undefined for a session without any record. */
  async read(tenantId: string, sessionId: string, before: number, limit: number): Promise<VfsAudit | undefined> {
    const file = this.#fileOf(tenantId, sessionId)
    await (
      await this.#open.get(file)
    )?.writing
    const parts = await Promise.all([`${file}.1`, file].map((one) => readFile(one, 'utf8').catch(() => '')))
    if (parts.every((part) => part === '')) return undefined
    const lines = parts
      .flatMap((part) => part.split('\n'))
      .flatMap(parsed)
      .filter(({ n }) => n < before)
    const entries = lines.slice(-limit).toReversed()
    const last = entries.at(-1)
    return {
      entries: entries.map(accessOf),
      ...(last && lines.length > limit ? { cursor: String(last.n) } : {}),
    }
  }

  /** Frees the memory of a closed session; its audit files stay. */
  async rest(tenantId: string, sessionId: string): Promise<void> {
    const file = this.#fileOf(tenantId, sessionId)
    await (
      await this.#open.get(file)
    )?.writing
    this.#open.delete(file)
  }

  /** Frees the memory of an erased tenant. Its audit files are deleted with the tenant's folder. */
  forget(tenantId: string): void {
    const dir = this.#dirOf(tenantId)
    for (const file of this.#open.keys()) if (dirname(file) === dir) this.#open.delete(file)
  }

  /** Removes audit files that were last written before this time (milliseconds since the epoch). */
  async expire(tenantId: string, before: number): Promise<void> {
    const dir = this.#dirOf(tenantId)
    for (const name of await readdir(dir).catch(() => [])) {
      const found = await stat(join(dir, name)).catch(() => undefined)
      if (!found || found.mtimeMs > before) continue
      this.#open.delete(join(dir, name))
      await rm(join(dir, name), { force: true })
    }
  }

  async #write(tenantId: string, file: string, audit: Open): Promise<void> {
    const text = audit.waiting.splice(0).join('')
    try {
      if (audit.bytes > fileBytes) {
        await rename(file, `${file}.1`)
        audit.bytes = 0
      }
      await appendFile(file, text, { mode: 0o600 }).catch(async (error: NodeJS.ErrnoException) => {
        if (error.code !== 'ENOENT') throw error
        await mkdir(this.#dirOf(tenantId), { recursive: true, mode: 0o700 })
        await appendFile(file, text, { mode: 0o600 })
      })
      audit.bytes += Buffer.byteLength(text)
    } catch {
      // A full disk must not prevent reads; writes fail by themselves.
    }
  }

  async #openFile(file: string): Promise<Open> {
    const found = await stat(file).catch(() => undefined)
    const last = found && (await lastOf(file, found.size))
    return {
      next: (last?.n ?? (await lastOf(`${file}.1`))?.n ?? 0) + 1,
      bytes: found?.size ?? 0,
      waiting: [],
      lists: new Set(),
      writing: Promise.resolve(),
    }
  }
  #fileOf(tenantId: string, sessionId: string): string {
    return join(this.#dirOf(tenantId), `${sessionId}.jsonl`)
  }
}

const accessOf = ({ at, operation, mount, path, bytes, outcome }: Line): VfsAccess => ({
  at,
  operation,
  ...(mount === undefined ? {} : { mount }),
  ...(path === undefined ? {} : { path }),
  ...(bytes === undefined ? {} : { bytes }),
  outcome,
})

/** A line is ignored if it does not parse, because the process ended while it wrote the line. */
function parsed(text: string): Line[] {
  try {
    return text === '' ? [] : [JSON.parse(text) as Line]
  } catch {
    return []
  }
}

async function lastOf(path: string, size?: number): Promise<Line | undefined> {
  const file = await open(path, 'r').catch(() => undefined)
  if (!file) return undefined
  try {
    const bytes = size ?? (await file.stat()).size
    // A path has at most 1,024 bytes, and each byte may take six as JSON. So 16 KiB hold the last line.
    const tail = Buffer.alloc(Math.min(bytes, 16 * 1024))
    await file.read(tail, 0, tail.length, bytes - tail.length)
    return tail.toString().split('\n').flatMap(parsed).at(-1)
  } finally {
    await file.close()
  }
}

interface Options {
  readonly sessions: Sessions
  readonly audit: Audit
  readonly idleMs: number
  readonly auditMs: number
  readonly log: FastifyBaseLogger
}

/**
 * Closes unused sessions, and removes expired audit and files that dead processes left, but nothing of tenants under a legal hold. It runs from the start of the process, and only on the
 * server's own folder.
 */
export class Sweeper {
  readonly #options: Options
  #timer: NodeJS.Timeout | undefined
  #under: Promise<void> = Promise.resolve()
  #stopped = false

  constructor(options: Options) {
    this.#options = options
  }

  start(everyMs: number): void {
    const next = (): void => {
      this.#under = this.sweep().finally(() => {
        if (!this.#stopped) this.#timer = setTimeout(next, everyMs).unref()
      })
    }
    next()
  }

  async sweep(): Promise<void> {
    const { sessions, audit, idleMs, auditMs, log } = this.#options
    for (const tenantId of await sessions.tenants()) {
      if (this.#stopped) return
      try {
        await sessions.unlessHeld(tenantId, async () => {
          const closed = await sessions.sweep(tenantId, Date.now() - idleMs)
          for (const id of closed) await audit.rest(tenantId, id)
          if (closed.length > 0) log.info({ tenantId, closed: closed.length }, 'idle VirtualFS sessions were closed')
          await audit.expire(tenantId, Date.now() - auditMs)
        })
      } catch (err) {
        log.warn({ err, tenantId }, 'leftovers of VirtualFS sessions could not be removed')
      }
    }
  }

  async stop(): Promise<void> {
    this.#stopped = true
    clearTimeout(this.#timer)
    await this.#under
    await this.#options.sessions.settled()
  }
}
