import { appendFile, mkdir, open, readdir, readFile, rename, rm, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { VfsAccess, VfsAudit } from '#contracts/vfs'

/** A file of the audit of a session; beyond it the one before goes. So a session has twice as much at most. */
const fileBytes = 1024 * 1024
/** Lines that wait for the disk; beyond it new ones of reads are counted, and said later in one line. */
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
  /** Lists since something else was done: one that is repeated is not said again. */
  readonly lists: Set<string>
  writing: Promise<void>
}

/**
 * What sessions read and wrote: lines of JSON in a file for each. What a write is answered for is in its file by then, though a loss of
 * power may lose the last of it.
 */
export class Audit {
  readonly #dirOf: (tenantId: string) => string
  /** Of sessions with something in memory. */
  readonly #open = new Map<string, Promise<Open>>()

  constructor(dirOf: (tenantId: string) => string) {
    this.#dirOf = dirOf
  }

  /** Resolves when it is written. Never rejects: what was done is done. */
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

  /** A session is closed: what is in memory of it goes, its files stay. */
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
      // A disk that is full keeps nobody from reading; writes fail by themselves.
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
