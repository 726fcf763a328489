import { mkdir, open, readdir, rename } from 'node:fs/promises'
import { join } from 'node:path'
import type { JournalHeader } from '#contracts/run-journal'
import { createFile, type JournalFile, type Reopened, reopenFile } from './file.ts'
import { isFinished } from './scan.ts'

/** The files of all tenants: `<dir>/<tenant>/<runId>.jsonl`. */
export interface Folder {
  create(header: JournalHeader): Promise<JournalFile>
  /** Undefined when there is no such file, or none that makes sense: that one is put aside. */
  reopen(tenantId: string, runId: string): Promise<Reopened | undefined>
  /** Makes the names of new files durable. */
  sync(tenantId: string): Promise<void>
  /** Every file there is, and whether it is finished. */
  list(): AsyncGenerator<{ readonly tenantId: string; readonly runId: string; readonly finished: boolean }>
}

const ending = '.jsonl'
/** Files looked at at once: a start finds tens of thousands. */
const abreast = 16

// A tenant's id is not a path: nothing of it may lead out of the folder.
const folderName = (tenantId: string): string => encodeURIComponent(tenantId).replaceAll('.', '%2E')

export async function openFolder(dir: string): Promise<Folder> {
  await mkdir(dir, { recursive: true })
  const made = new Set<string>()
  const tenantDir = (tenantId: string): string => join(dir, folderName(tenantId))
  const path = (tenantId: string, runId: string): string => join(tenantDir(tenantId), `${runId}${ending}`)
  const look = async (tenantId: string, name: string) => {
    const runId = name.slice(0, -ending.length)
    const handle = await open(path(tenantId, runId), 'r')
    try {
      return { tenantId, runId, finished: await isFinished(handle) }
    } finally {
      await handle.close()
    }
  }
  return {
    async create(header) {
      const { tenantId, runId } = header
      if (!made.has(tenantId)) {
        await mkdir(tenantDir(tenantId), { recursive: true })
        made.add(tenantId)
      }
      const file = path(tenantId, runId)
      try {
        return await createFile(file, header)
      } catch (error) {
        if ((error as { code?: string }).code !== 'EEXIST') throw error
        // Of a database that is no longer used: what was written is kept, under a name that is no run's.
        await rename(file, `${file}.${Date.now()}.old`)
        return createFile(file, header)
      }
    },
    async reopen(tenantId, runId) {
      const file = path(tenantId, runId)
      try {
        const reopened = await reopenFile(file)
        if (!reopened) await rename(file, `${file}.${Date.now()}.torn`)
        return reopened
      } catch (error) {
        if ((error as { code?: string }).code === 'ENOENT') return undefined
        throw error
      }
    },
    async sync(tenantId) {
      const handle = await open(tenantDir(tenantId), 'r')
      await handle.sync().finally(() => handle.close())
    },
    async *list() {
      for (const entry of await readdir(dir, { withFileTypes: true })) {
        if (!entry.isDirectory()) continue
        const tenantId = decodeURIComponent(entry.name)
        const names = (await readdir(tenantDir(tenantId))).filter((name) => name.endsWith(ending))
        for (let i = 0; i < names.length; i += abreast) {
          yield* await Promise.all(names.slice(i, i + abreast).map((name) => look(tenantId, name)))
        }
      }
    },
  }
}
