import { mkdir, open, readdir, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { isFinished, JournalFile, type JournalHeader, readStart } from './file.ts'
import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import { Sweep } from '#kit'

export interface RunKey {
  readonly tenantId: string
  readonly runId: string
}

const ending = '.jsonl'
/** How many files are read at once. A start may find tens of thousands. */
const abreast = 16

// A tenant id must not be used as a path: encode it, so that it cannot lead out of the folder.
const folderName = (tenantId: string): string => encodeURIComponent(tenantId).replaceAll('.', '%2E')
const hasCode = (error: unknown, code: string): boolean => (error as { code?: string }).code === code

/** The files of all tenants: `<dir>/<tenant>/<runId>.jsonl`. */
export class JournalFolder {
  readonly #dir: string
  readonly #made = new Set<string>()

  private constructor(dir: string) {
    this.#dir = dir
  }
  static async open(dir: string): Promise<JournalFolder> {
    await mkdir(dir, { recursive: true })
    return new JournalFolder(dir)
  }

  async create(header: JournalHeader): Promise<JournalFile> {
    const { tenantId } = header
    if (!this.#made.has(tenantId)) {
      await mkdir(this.#of(tenantId), { recursive: true })
      this.#made.add(tenantId)
    }
    const path = this.#path(header)
    try {
      return await JournalFile.create(path, header)
    } catch (error) {
      if (!hasCode(error, 'EEXIST')) throw error
      // The file belongs to a database that is no longer used. Keep it under a name that no run has.
      await rename(path, `${path}.${Date.now()}.old`)
      return JournalFile.create(path, header)
    }
  }
  /** Opens the file of a run. Undefined when there is no file, or no valid one; an invalid file is renamed. */
  async reopen(run: RunKey): Promise<JournalFile | undefined> {
    const path = this.#path(run)
    try {
      const file = await JournalFile.reopen(path)
      if (!file) await rename(path, `${path}.${Date.now()}.torn`)
      return file
    } catch (error) {
      if (hasCode(error, 'ENOENT')) return undefined
      throw error
    }
  }
  /** Removes the file of a run that was discarded. */
  async remove(file: JournalFile): Promise<void> {
    await file.close()
    await rm(this.#path(file.header), { force: true })
  }
  /** The tenants that have a folder here. */
  async tenants(): Promise<string[]> {
    const entries = await readdir(this.#dir, { withFileTypes: true })
    return entries.filter((entry) => entry.isDirectory()).map(({ name }) => decodeURIComponent(name))
  }
  /** Removes the files of these runs, including files that were put aside. */
  async removeRuns(tenantId: string, runs: ReadonlySet<string>): Promise<void> {
    for (const name of await readdir(this.#of(tenantId))) {
      const [runId] = name.split(ending, 1)
      if (name.includes(ending) && runs.has(runId!)) await rm(join(this.#of(tenantId), name), { force: true })
    }
  }
  async removeTenant(tenantId: string): Promise<void> {
    this.#made.delete(tenantId)
    await rm(this.#of(tenantId), { recursive: true, force: true })
  }
  /** Makes the names of new files durable. */
  async sync(tenantId: string): Promise<void> {
    const handle = await open(this.#of(tenantId), 'r')
    await handle.sync().finally(() => handle.close())
  }
  /** The runs whose file has no finish line. */
  async *unfinished(): AsyncGenerator<RunKey> {
    for await (const { run, found } of this.#look(isFinished)) if (!found) yield run
  }
  /** All runs, in the order in which they began. Files without a whole header are put aside. */
  async inOrder(): Promise<RunKey[]> {
    const runs: { readonly run: RunKey; readonly found: string }[] = []
    for await (const { run, found } of this.#look(readStart)) {
      if (found === undefined) await this.reopen(run)
      else runs.push({ run, found })
    }
    return runs.sort((a, b) => (a.found < b.found ? -1 : a.found > b.found ? 1 : 0)).map(({ run }) => run)
  }

  #of(tenantId: string): string {
    return join(this.#dir, folderName(tenantId))
  }
  #path({ tenantId, runId }: RunKey): string {
    return join(this.#of(tenantId), `${runId}${ending}`)
  }
  /** Yields every file with the result of `look`. */
  async *#look<T>(look: (path: string) => Promise<T>): AsyncGenerator<{ readonly run: RunKey; readonly found: T }> {
    for (const entry of await readdir(this.#dir, { withFileTypes: true })) {
      if (!entry.isDirectory()) continue
      const tenantId = decodeURIComponent(entry.name)
      const names = (await readdir(this.#of(tenantId))).filter((name) => name.endsWith(ending))
      for (let i = 0; i < names.length; i += abreast) {
        const some = names.slice(i, i + abreast).map(async (name) => {
          const run = { tenantId, runId: name.slice(0, -ending.length) }
          return { run, found: await look(this.#path(run)) }
        })
        yield* await Promise.all(some)
      }
    }
  }
}

const everyMs = 60_000
const atOnce = 500

const tenants = {
  name: 'erased-tenants',
  text: 'SELECT id, erased_at IS NOT NULL AS erased FROM tenants WHERE id = ANY($1)',
}
// Rows may commit later than their timestamp, so each look begins one minute before the last row that was read.
const runs = {
  name: 'erased-runs',
  text: `SELECT run_id, at::text FROM erased_runs WHERE tenant_id = $1
           AND (at, run_id) > ($2::timestamptz, $3) ORDER BY at, run_id LIMIT ${atOnce}`,
}
const overlap = `SELECT (coalesce(max(at), '-infinity') - interval '1 minute')::text AS since FROM erased_runs WHERE tenant_id = $1`

/**
 * Removes the files of runs that retention or an erasure deleted, and the folders of erased tenants. A run that is merely unknown to the database
 * keeps its file, because the file may belong to another database.
 */
export class ErasedFiles {
  readonly #database: Database
  readonly #folder: JournalFolder
  /** The time from which each tenant's erased runs are read next. The first look reads all. */
  readonly #since = new Map<string, string>()
  readonly #looks: Sweep

  constructor(database: Database, folder: JournalFolder, log: Pick<FastifyBaseLogger, 'warn'>) {
    this.#database = database.as('reads')
    this.#folder = folder
    const failed = (err: unknown): void =>
      log.warn({ err }, 'files of deleted runs could not be removed; it is tried again')
    this.#looks = new Sweep(everyMs, () => this.look(), failed)
  }
  start(): void {
    void this.#looks.now()
    this.#looks.start()
  }
  stop(): Promise<void> {
    return this.#looks.stop()
  }
  /** One look at all tenants that have files here. */
  async look(): Promise<void> {
    const present = await this.#folder.tenants()
    if (present.length === 0) return
    type Row = { id: string; erased: boolean }
    const [rows] = await this.#database.systemBatch<[Row[]]>([{ ...tenants, values: [present] }])
    for (const { id, erased } of rows) {
      if (erased) await this.#folder.removeTenant(id)
      else await this.#lookAt(id)
    }
  }
  async #lookAt(tenantId: string): Promise<void> {
    let place = [this.#since.get(tenantId) ?? '-infinity', '']
    const [[next]] = await this.#database.batch<[{ since: string }[]]>(tenantId, [
      { text: overlap, values: [tenantId] },
    ])
    for (;;) {
      type Row = { run_id: string; at: string }
      const [rows] = await this.#database.batch<[Row[]]>(tenantId, [{ ...runs, values: [tenantId, ...place] }])
      if (rows.length > 0) await this.#folder.removeRuns(tenantId, new Set(rows.map((row) => row.run_id)))
      if (rows.length < atOnce) break
      const last = rows.at(-1)!
      place = [last.at, last.run_id]
    }
    this.#since.set(tenantId, next!.since)
  }
}
