import { appendFile, mkdir, open, readdir, readFile, rename, rm, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { VfsAccess, VfsAudit } from '#contracts/vfs'

/** Size of one audit file of a session. A full file replaces the one before it, so a session has twice as much at most. */
const fileBytes = 1024 * 1024
/** Lines that may wait for the disk. Beyond that, reads are only counted and recorded later in one line. */
const mostWaiting = 10_000
const mostLists = 1_000

interface Line extends VfsAccess {
  /** Counts up within a session; a cursor is one of these. */
  readonly n: number
}

interface Open {
  next: number
  bytes: number
  waiting: string[]
  /** Lists since the last other operation: a repeated list is not recorded again. */
  readonly lists: Set<string>
  writing: Promise<void>
}

/**
 * What sessions read and wrote: JSON lines in a file for each session. A write is in its file before it is answered; a loss of power
 * may lose the last lines.
 */
export class Audit {
  readonly #dirOf: (tenantId: string) => string
  /** Of sessions with something in memory. */
  readonly #open = new Map<string, Promise<Open>>()

  constructor(dirOf: (tenantId: string) => string) {
    this.#dirOf = dirOf
  }

  /** Resolves when it is written. Never rejects, because the operation has already happened. */
  async note(tenantId: string, sessionId: string, access: Omit<VfsAccess, 'at'>): Promise<void> {
    const file = this.#fileOf(tenantId, sessionId)
    const opening = this.#open.get(file) ?? this.#openFile(file)
    this.#open.set(file, opening)
    const audit = await opening
    if (audit.waiting.length >= mostWaiting && access.operation !== 'write' && access.operation !== 'delete') return
    const list = access.operation === 'list' ? JSON.stringify(access) : undefined
    if (list !== undefined && audit.lists.has(list)) return
    if (list === undefined || audit.lists.size >= mostLists) audit.lists.clear()
    if (list !== undefined) audit.lists.add(list)
    const line: Line = { n: audit.next++, at: new Date().toISOString(), ...access }
    audit.waiting.push(`${JSON.stringify(line)}\n`)
    // Those that come meanwhile are written together.
    if (audit.waiting.length === 1) audit.writing = audit.writing.then(() => this.#write(tenantId, file, audit))
    await audit.writing
  }

  /** Undefined when nothing is known of the session. */
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

  /** The tenant is erased, with its files. */
  forget(tenantId: string): void {
    const dir = this.#dirOf(tenantId)
    for (const file of this.#open.keys()) if (dirname(file) === dir) this.#open.delete(file)
  }

  /** Removes what was written last before this time. */
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

/** A line that was cut by the end of a process is ignored. */
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
    // A path is 1024 bytes at most, of which each may take six as JSON.
    const tail = Buffer.alloc(Math.min(bytes, 16 * 1024))
    await file.read(tail, 0, tail.length, bytes - tail.length)
    return tail.toString().split('\n').flatMap(parsed).at(-1)
  } finally {
    await file.close()
  }
}
