// Packs the files of a session into one gzip tar, for runtimes whose vendor keeps conversations in files.
import { constants } from 'node:fs'
import { mkdir, mkdtemp, open, rename, rm, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { Readable, type Writable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createGunzip, createGzip } from 'node:zlib'
import { extract, type Header, type Pack, pack as createTar } from 'tar-stream'
import { errorTable, isAppError } from '#kernel'

export const archiveErrors = errorTable('archive', {
  /** The archive came from outside, so any fault in it is the sender's. */
  invalidState: { status: 400, message: 'The body is not a state bundle of this runtime.' },
  stateTooLarge: { status: 500, message: "The session's state is larger than a bundle may be." },
})

interface ArchiveLimits {
  /** Bytes of the compressed archive. */
  readonly packedBytes: number
  /** Bytes of the tar inside the archive. */
  readonly unpackedBytes: number
  readonly entries: number
}

export const archiveLimits: ArchiveLimits = {
  // A runner takes no more of one session (specification 4.22).
  packedBytes: 64 * 1024 * 1024,
  unpackedBytes: 256 * 1024 * 1024,
  entries: 10_000,
}

/** A file of a folder, or its first bytes when the rest may be half written. */
type PackedFile = string | { readonly name: string; readonly bytes: number }

/** Files of a folder as a gzip tar. The same files give the same bytes. Rejects when one of them is not a regular file. */
export async function pack(
  folder: string,
  files: readonly PackedFile[],
  limits: ArchiveLimits = archiveLimits,
): Promise<Uint8Array> {
  const parts = files.map((file) => (typeof file === 'string' ? { name: file, bytes: Infinity } : file))
  const wrong = parts.find(({ name }) => !isEntryName(name))
  if (wrong) throw new Error(`not the name of a file in a state bundle: ${JSON.stringify(wrong.name)}`)
  if (parts.length > limits.entries) throw archiveErrors.stateTooLarge()
  const tar = createTar()
  const chunks: Buffer[] = []
  const packed = pipeline(tar, createGzip(), async (source: AsyncIterable<Buffer>) => {
    let size = 0
    for await (const chunk of source) {
      size += chunk.length
      if (size > limits.packedBytes) throw archiveErrors.stateTooLarge()
      chunks.push(chunk)
    }
  })
  const filled = fill(
    tar,
    folder,
    parts.toSorted((a, b) => (a.name < b.name ? -1 : 1)),
    limits,
  )
  // Wait for both, so that no file stays open. The one that failed first has the reason.
  filled.catch((error: Error) => tar.destroy(error))
  const [result] = await Promise.allSettled([packed, filled])
  if (result.status === 'rejected') throw result.reason
  return Buffer.concat(chunks)
}

type Part = Exclude<PackedFile, string>

async function fill(tar: Pack, folder: string, parts: readonly Part[], limits: ArchiveLimits): Promise<void> {
  let total = 0
  for (const { name, bytes } of parts) {
    const file = await open(join(folder, name), constants.O_RDONLY | constants.O_NOFOLLOW)
    try {
      const stats = await file.stat()
      if (!stats.isFile()) throw new Error(`not a regular file: ${name}`)
      // A process may still append to the file, so only the bytes that were there at first are packed.
      const size = Math.min(stats.size, bytes)
      total += size
      if (total > limits.unpackedBytes) throw archiveErrors.stateTooLarge()
      const header = { name, size, mode: 0o600, mtime: new Date(0) }
      if (size === 0) await new Promise<void>((resolve) => void tar.entry(header, '', () => resolve()))
      else await pipeline(file.createReadStream({ end: size - 1, autoClose: false }), tar.entry(header))
    } finally {
      await file.close()
    }
  }
  tar.finalize()
}

/**
 * Replaces the contents of `folder` with exactly the files of an archive made by `pack`. All or nothing: an archive with any other content, or with
 * a file that `accepts` refuses, throws AppError 400 `invalid_state` and changes nothing.
 */
export async function unpack(
  archive: Uint8Array,
  folder: string,
  accepts: (name: string) => boolean,
  limits: ArchiveLimits = archiveLimits,
): Promise<void> {
  if (archive.length > limits.packedBytes) throw archiveErrors.invalidState()
  const fresh = await mkdtemp(`${folder}.new-`)
  try {
    await extractInto(fresh, archive, accepts, limits)
    await replace(folder, fresh)
  } catch (error) {
    await rm(fresh, { recursive: true, force: true })
    throw isAppError(error) || isOurs(error) ? error : archiveErrors.invalidState({ cause: error })
  }
}

/** The most bytes that tar adds to one entry: its header, its padding, and a PAX header for a long name. */
const overheadBytes = 2_048
/** Bytes for the end of a tar, its padding, and what is buffered in the streams. */
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
    if (!isOrdinary(header) || !isEntryName(name) || names.has(name) || !accepts(name))
      throw archiveErrors.invalidState()
    names.add(name)
    announced += size
    if (names.size > limits.entries || announced > limits.unpackedBytes) throw archiveErrors.invalidState()
    const path = join(folder, name)
    if (!folders.has(dirname(path))) await mkdir(dirname(path), { recursive: true, mode: 0o700 })
    folders.add(dirname(path))
    await writeFile(path, body, { flag: 'wx', mode: 0o600 })
  }
  const gunzip = createGunzip()
  const tar = extract()
  let last: Promise<void> = Promise.resolve()
  tar.on('entry', (header, body, release) => {
    // The tar reports the same failure. Without a listener this one would end the process.
    body.on('error', () => {})
    last = take(header, body as unknown as AsyncIterable<Uint8Array>)
    last.then(() => release(), release)
  })
  // A pipeline misses the error that a torn tar emits after its last byte, so it is caught here.
  const whole = new Promise<void>((resolve, reject) => void tar.on('error', reject).on('close', resolve))
  const bounded = async function* (source: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    let total = 0
    for await (const chunk of source) {
      total += chunk.length
      // Count here, because a streaming gunzip has no limit, and tar-stream keeps a whole PAX header in memory.
      const headers = slackBytes + names.size * overheadBytes
      if (total > Math.min(limits.unpackedBytes, announced + headers)) throw archiveErrors.invalidState()
      yield chunk
    }
  }
  try {
    await Promise.all([pipeline(Readable.from([archive]), gunzip, bounded, tar as unknown as Writable), whole])
    await last
  } finally {
    // Wait, because the folder must not be removed while a file is being written.
    await last.catch(() => {})
  }
  // gunzip stops without an error at bytes that are not gzip, so check that all bytes were read.
  if (names.size === 0 || gunzip.bytesWritten !== archive.length) throw archiveErrors.invalidState()
}

/** A regular file as `pack` writes it. A size that is not a count would make tar-stream wait for ever. */
const isOrdinary = ({ type, size, linkname, pax }: Header): boolean =>
  type === 'file' &&
  Number.isSafeInteger(size) &&
  size >= 0 &&
  !linkname &&
  Object.keys((pax as object | null | undefined) ?? {}).every((key) => key === 'path')

/** If the process stops in between, the session has no files, and the sender sends the archive again. */
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

/** Errors that the archive causes: it contains `a` and `a/b`, or two names that are equal on this file system. */
const clashes: ReadonlySet<unknown> = new Set(['EEXIST', 'ENOTDIR', 'EISDIR', 'ENAMETOOLONG', 'EILSEQ'])

/** True for a failing disk, which the archive did not cause. */
const isOurs = (error: unknown): boolean =>
  error instanceof Error && 'syscall' in error && !clashes.has((error as NodeJS.ErrnoException).code)

const maxNameBytes = 255

/** True for a relative path in normal form, which cannot leave its target folder on any file system. */
function isEntryName(name: string): boolean {
  if (name === '' || Buffer.byteLength(name) > maxNameBytes) return false
  // U+FFFD stands for bytes that were no text: two such names could be one.
  // oxlint-disable-next-line no-control-regex
  if (/[\u0000-\u001f\u007f\\\ufffd]/.test(name)) return false
  return name.split('/').every((part) => part !== '' && part !== '.' && part !== '..')
}
