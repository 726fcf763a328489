import { mkdir, mkdtemp, rename, rm, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { Readable, type Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createGunzip } from 'node:zlib'
import { extract, type Header } from 'tar-stream'
import { isAppError } from '#kernel'
import { invalidState } from './errors.ts'
import { type ArchiveLimits, archiveLimits } from './limits.ts'
import { isEntryName } from './names.ts'

/**
 * Makes `folder` hold exactly the files of an archive of `pack`; what it held before is gone. All or nothing: an archive with
 * anything else in it, or with a file that `accepts` refuses, throws AppError 400 `invalid_state` and changes nothing.
 */
export async function unpack(
  archive: Uint8Array,
  folder: string,
  accepts: (name: string) => boolean,
  limits: ArchiveLimits = archiveLimits,
): Promise<void> {
  if (archive.length > limits.packedBytes) throw invalidState()
  const fresh = await mkdtemp(`${folder}.new-`)
  try {
    await extractInto(fresh, archive, accepts, limits)
    await replace(folder, fresh)
  } catch (error) {
    await rm(fresh, { recursive: true, force: true })
    throw isAppError(error) || isOurs(error) ? error : invalidState({ cause: error })
  }
}

/** Tar spends at most this on an entry of ours: its header, its padding, and a PAX header for a long name. */
const overheadBytes = 2_048
/** The end of a tar, its padding, and what is on its way through the streams. */
const slackBytes = 1024 * 1024

async function extractInto(
  folder: string,
  archive: Uint8Array,
  accepts: (name: string) => boolean,
  limits: ArchiveLimits,
): Promise<void> {
  const names = new Set<string>()
  const folders = new Set<string>()
  let announced = 0
  const take = async (header: Header, body: AsyncIterable<Uint8Array>): Promise<void> => {
    const { name, size } = header
    if (!isOrdinary(header) || !isEntryName(name) || names.has(name) || !accepts(name)) throw invalidState()
    names.add(name)
    announced += size
    if (names.size > limits.entries || announced > limits.unpackedBytes) throw invalidState()
    const path = join(folder, name)
    if (!folders.has(dirname(path))) await mkdir(dirname(path), { recursive: true, mode: 0o700 })
    folders.add(dirname(path))
    await writeFile(path, body, { flag: 'wx', mode: 0o600 })
  }
  const gunzip = createGunzip()
  const tar = extract()
  let last: Promise<void> = Promise.resolve()
  tar.on('entry', (header, body, release) => {
    // Its failure is the tar's; without a listener it would end the process.
    body.on('error', () => {})
    last = take(header, body as unknown as AsyncIterable<Uint8Array>)
    last.then(() => release(), release)
  })
  // A pipeline does not hear what a tar says after its last byte: that it is torn.
  const whole = new Promise<void>((resolve, reject) => void tar.on('error', reject).on('close', resolve))
  const bounded = async function* (source: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    let total = 0
    for await (const chunk of source) {
      total += chunk.length
      // Counted here: a streaming gunzip knows no limit of its own, and tar-stream holds a whole PAX header in memory.
      const headers = slackBytes + names.size * overheadBytes
      if (total > Math.min(limits.unpackedBytes, announced + headers)) throw invalidState()
      yield chunk
    }
  }
  try {
    await Promise.all([pipeline(Readable.from([archive]), gunzip, bounded, tar as unknown as Writable), whole])
    await last
  } finally {
    // Whoever removes the folder now must not meet a file that is being written.
    await last.catch(() => {})
  }
  // gunzip stops in silence before what is not gzip.
  if (names.size === 0 || gunzip.bytesWritten !== archive.length) throw invalidState()
}

/** A regular file as `pack` writes it. A size that is not a count would make tar-stream wait for ever. */
const isOrdinary = ({ type, size, linkname, pax }: Header): boolean =>
  type === 'file' &&
  Number.isSafeInteger(size) &&
  size >= 0 &&
  !linkname &&
  Object.keys((pax as object | null | undefined) ?? {}).every((key) => key === 'path')

/** Of a stop in between the worst is a session without its files, and whoever has the archive brings it again. */
async function replace(folder: string, fresh: string): Promise<void> {
  const old = `${fresh}.old`
  const moved = await rename(folder, old).then(
    () => true,
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return false
      throw error
    },
  )
  await rename(fresh, folder)
  if (moved) await rm(old, { recursive: true, force: true })
}

/** The archive's fault: `a` and `a/b`, or names that are one on this file system. */
const clashes: ReadonlySet<unknown> = new Set(['EEXIST', 'ENOTDIR', 'EISDIR', 'ENAMETOOLONG', 'EILSEQ'])

/** A failing disk is no fault of the archive. */
const isOurs = (error: unknown): boolean =>
  error instanceof Error && 'syscall' in error && !clashes.has((error as NodeJS.ErrnoException).code)
