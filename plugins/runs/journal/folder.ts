import { mkdir, open, readdir, rename, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { isFinished, JournalFile, type JournalHeader, readStart } from './file.ts'

export interface RunKey {
  readonly tenantId: string
  readonly runId: string
}

const ending = '.jsonl'
/** How many files are read at once: a start may find tens of thousands. */
const abreast = 16

// A tenant's id is not a path: nothing of it may lead out of the folder.
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
      // The file belongs to a database that is no longer used. It is kept, under a name that no run has.
      await rename(path, `${path}.${Date.now()}.old`)
      return JournalFile.create(path, header)
    }
  }
  /** Undefined when there is no such file, or no valid one: an invalid file is renamed. */
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
  /** Removes the file of a run that was taken back. */
  async remove(file: JournalFile): Promise<void> {
    await file.close()
    await rm(this.#path(file.header), { force: true })
  }
  /** Tenants with a folder here. */
  async tenants(): Promise<string[]> {
    const entries = await readdir(this.#dir, { withFileTypes: true })
    return entries.filter((entry) => entry.isDirectory()).map(({ name }) => decodeURIComponent(name))
  }
  /** Removes the files of runs that are to be forgotten, those that were put aside included. */
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
  /** Every file, with the result of `look`. */
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
