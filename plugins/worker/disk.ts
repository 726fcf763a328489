import { mkdir, open, readFile, rename, rm, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { maxStateBytes } from '#contracts/wire/worker'
import type { RevisedState } from './runner-client.ts'

/** A session's state on this machine. It also names the runtime, which neither the bundle nor the runner does. */
export interface DiskState extends RevisedState {
  readonly runtime: string
}

/** Copies of states in a folder, one file per session. Writes are atomic: a file holds the old or the new copy. */
export interface Disk {
  read(sessionId: string): Promise<DiskState | undefined>
  write(sessionId: string, state: DiskState): Promise<void>
  remove(sessionId: string): Promise<void>
}

/** The first line of the file. It describes the bytes that follow. */
interface Head {
  readonly version: 1
  readonly rev: number
  readonly runtime: string
  readonly contentType: string
  readonly runtimeSessionId?: string
  readonly size: number
}
const maxHeadBytes = 64 * 1024

export function createDisk(folder: string): Disk {
  const fileOf = (sessionId: string): string => join(folder, `${sessionId}.state`)
  return {
    async read(sessionId) {
      const file = fileOf(sessionId)
      const { size } = await stat(file).catch(absent)
      if (size === undefined || size > maxStateBytes + maxHeadBytes) return undefined
      return decode(await readFile(file))
    },
    async write(sessionId, state) {
      await mkdir(folder, { recursive: true, mode: 0o700 })
      await replaceFile(fileOf(sessionId), encode(state))
    },
    remove: (sessionId) => rm(fileOf(sessionId), { force: true }),
  }
}

const absent = (error: NodeJS.ErrnoException): { readonly size: undefined } => {
  if (error.code === 'ENOENT') return { size: undefined }
  throw error
}

function encode({ rev, runtime, bundle }: DiskState): readonly Uint8Array[] {
  const { bytes, contentType, runtimeSessionId } = bundle
  const head: Head = {
    version: 1,
    rev,
    runtime,
    contentType,
    ...(runtimeSessionId === undefined ? {} : { runtimeSessionId }),
    size: bytes.length,
  }
  return [Buffer.from(`${JSON.stringify(head)}\n`), bytes]
}

/** Undefined for a file of another version, or an incomplete one. */
function decode(file: Buffer): DiskState | undefined {
  const end = file.indexOf(0x0a)
  if (end < 0) return undefined
  const head = headOf(file.toString('utf8', 0, end))
  const bytes = file.subarray(end + 1)
  if (!head || bytes.length !== head.size) return undefined
  const { rev, runtime, contentType, runtimeSessionId } = head
  return {
    rev,
    runtime,
    bundle: { bytes, contentType, ...(runtimeSessionId === undefined ? {} : { runtimeSessionId }) },
  }
}

function headOf(text: string): Head | undefined {
  try {
    const head = JSON.parse(text) as Partial<Head> | null
    const known = head?.version === 1 && typeof head.runtime === 'string' && typeof head.contentType === 'string'
    return known && Number.isSafeInteger(head.rev) ? (head as Head) : undefined
  } catch {
    return undefined
  }
}

/** Replaces a file atomically, so that even after a power cut it holds the old or the new content. */
export async function replaceFile(file: string, parts: readonly Uint8Array[]): Promise<void> {
  const fresh = `${file}.${process.pid}.new`
  try {
    const handle = await open(fresh, 'w', 0o600)
    try {
      for (const part of parts) await handle.writeFile(part)
      await handle.sync()
    } finally {
      await handle.close()
    }
    await rename(fresh, file)
    // The folder must be synced as well, because otherwise the rename could be lost.
    const folder = await open(dirname(file), 'r')
    await folder.sync().finally(() => folder.close())
  } catch (error) {
    await rm(fresh, { force: true })
    throw error
  }
}
