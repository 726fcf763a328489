import { hash } from 'node:crypto'
import { appendFile, mkdir, open, opendir, readFile, rename, rm, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { limitErrors } from '#contracts/limits'
import type { VfsAccess, VfsAudit } from '#contracts/vfs'
import { SingleFlight } from '#kit'
import type { FastifyBaseLogger } from 'fastify'
import type { Sessions } from './sessions.ts'

/** Bytes of one audit file of a session. A full file replaces the one before it, so a session has at most two such files. */
const fileBytes = 1024 * 1024
/** Lines that may wait for the disk. While more wait, only writes and deletions are recorded. */
const mostWaiting = 10_000
const mostLists = 1_000
/** A file counts by blocks of this many bytes, so that the bound of bytes is one of files, too. */
const blockBytes = 4_096
/** The part of the bound beyond which the oldest files go, and the part that stays. All files of the tenant are looked at each time, and nobody waits for it. */
const full = 7 / 8
const stays = 3 / 4

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

interface AuditOptions {
  readonly dirOf: (tenantId: string) => string
  /** Bytes of all audits of a tenant, those of closed sessions included. */
  readonly mostBytes: number
  readonly holds: Pick<Sessions, 'isHeld' | 'unlessHeld'>
}

/** Audit files of a tenant, and their bytes by the second in which they were last written. */
interface Found {
  readonly files: { readonly path: string; readonly second: number }[]
  readonly bySecond: Map<number, number>
  bytes: number
}

/**
 * Records what sessions read and wrote, as JSON lines in a file for each session. A write is recorded before it is answered. A loss of power may
 * lose the last lines. Beyond a number of bytes, the files of a tenant that were written longest ago are removed.
 */
export class Audit {
  readonly #options: AuditOptions
  /** By file, the audits of sessions that have something in memory. */
  readonly #open = new Map<string, Promise<Open>>()
  /** Bytes of audits by tenant, as of the last count and with what was written since. */
  readonly #bytes = new Map<string, number>()
  readonly #trims = new SingleFlight<void>()

  constructor(options: AuditOptions) {
    this.#options = options
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
    const dir = this.#options.dirOf(tenantId)
    for (const file of this.#open.keys()) if (dirname(file) === dir) this.#open.delete(file)
    this.#bytes.delete(tenantId)
  }

  /** Resolves when the tenant has room for the audit of another session. Rejects with 409 `limit_exceeded` when a legal hold keeps the old ones. */
  async room(tenantId: string): Promise<void> {
    const { mostBytes } = this.#options
    if (this.#bytesOf(tenantId) <= mostBytes) return
    await this.#trim(tenantId)
    if (this.#bytesOf(tenantId) > mostBytes) throw overHeld(mostBytes)
  }

  async #count(tenantId: string): Promise<Found> {
    const before = this.#bytesOf(tenantId)
    const found: Found = { files: [], bySecond: new Map(), bytes: 0 }
    for await (const path of filesIn(this.#options.dirOf(tenantId))) {
      const known = await stat(path).catch(() => undefined)
      if (!known) continue
      const [second, bytes] = [secondOf(known.mtimeMs), inBlocks(known.size)]
      found.files.push({ path, second })
      found.bySecond.set(second, (found.bySecond.get(second) ?? 0) + bytes)
      found.bytes += bytes
    }
    this.#bytes.set(tenantId, found.bytes + this.#bytesOf(tenantId) - before)
    return found
  }

  /**
   * Removes audit files that were last written before this time (milliseconds since the epoch), and the oldest while there are too many bytes. A hold
   * that is set meanwhile waits for the removals, and not for the count before them.
   */
  async expire(tenantId: string, before: number): Promise<void> {
    const found = await this.#count(tenantId)
    const from = Math.max(secondOf(before), this.#boundOf(found))
    const old = found.files.filter(({ second }) => second < from)
    if (old.length === 0) return
    await this.#options.holds.unlessHeld(tenantId, async () => {
      for (const { path } of old) await this.#remove(tenantId, path, from)
    })
  }

  /** Removes a file, unless it was written in this second or later. */
  async #remove(tenantId: string, path: string, from: number): Promise<void> {
    const known = await stat(path).catch(() => undefined)
    if (!known || secondOf(known.mtimeMs) >= from) return
    await rm(path, { force: true })
    this.#grew(tenantId, -inBlocks(known.size))
    // A session that is open begins a new file, and goes on counting its lines.
    const audit = await this.#open.get(path)
    if (audit) audit.bytes = 0
  }

  /** The second from which files stay, because they have room together. */
  #boundOf({ bytes, bySecond }: Found): number {
    const { mostBytes } = this.#options
    let [left, from] = [bytes, 0]
    if (left <= mostBytes * full) return from
    for (const second of Float64Array.from(bySecond.keys()).sort()) {
      if (left <= mostBytes * stays) break
      left -= bySecond.get(second)!
      from = second + 1
    }
    return from
  }

  #bytesOf(tenantId: string): number {
    return this.#bytes.get(tenantId) ?? 0
  }
  #grew(tenantId: string, bytes: number): void {
    this.#bytes.set(tenantId, Math.max(0, this.#bytesOf(tenantId) + bytes))
  }

  async #trim(tenantId: string): Promise<void> {
    const { holds } = this.#options
    // Under a hold nothing is counted in vain. What fails here is tried again by the next sweep, which logs it.
    await this.#trims
      .run(tenantId, async () => void ((await holds.isHeld(tenantId)) || (await this.expire(tenantId, 0))))
      .catch(() => {})
  }

  async #write(tenantId: string, file: string, audit: Open): Promise<void> {
    const text = audit.waiting.splice(0).join('')
    try {
      if (audit.bytes > fileBytes) {
        const replaced = await stat(`${file}.1`).catch(() => undefined)
        await rename(file, `${file}.1`)
        this.#grew(tenantId, -inBlocks(replaced?.size ?? 0))
        audit.bytes = 0
      }
      await appendFile(file, text, { mode: 0o600 }).catch(async (error: NodeJS.ErrnoException) => {
        if (error.code !== 'ENOENT') throw error
        await mkdir(this.#options.dirOf(tenantId), { recursive: true, mode: 0o700 })
        await appendFile(file, text, { mode: 0o600 })
      })
      const bytes = audit.bytes + Buffer.byteLength(text)
      this.#grew(tenantId, inBlocks(bytes) - inBlocks(audit.bytes))
      audit.bytes = bytes
    } catch {
      // A full disk must not prevent reads; writes fail by themselves.
    }
    if (this.#bytesOf(tenantId) > this.#options.mostBytes * full) void this.#trim(tenantId)
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
    return join(this.#options.dirOf(tenantId), `${sessionId}.jsonl`)
  }
}

const secondOf = (ms: number): number => Math.floor(ms / 1_000)
const inBlocks = (bytes: number): number => Math.ceil(bytes / blockBytes) * blockBytes

const overHeld = (max: number) =>
  limitErrors.limitExceeded({
    message: `The audits of this tenant's sessions have more than ${max} bytes, and a legal hold keeps them; no session opens until it is lifted.`,
    detail: { limit: 'vfs audit bytes', max },
  })

/** The files of a folder, which may be very many: it is read in parts. */
async function* filesIn(dir: string): AsyncGenerator<string> {
  const folder = await opendir(dir, { bufferSize: 512 }).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw error
  })
  if (folder) for await (const { name } of folder) yield join(dir, name)
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
        })
        await audit.expire(tenantId, Date.now() - auditMs)
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
