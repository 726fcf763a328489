import { constants } from 'node:fs'
import { open } from 'node:fs/promises'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { createGzip } from 'node:zlib'
import { pack as createTar, type Pack } from 'tar-stream'
import { stateTooLarge } from './errors.ts'
import { type ArchiveLimits, archiveLimits } from './limits.ts'
import { isEntryName } from './names.ts'

/** A file of a folder, or what it begins with: the rest may be half written. */
export type PackedFile = string | { readonly name: string; readonly bytes: number }

/** Files of a folder as a gzip tar. The same files give the same bytes. Rejects when one of them is not a regular file. */
export async function pack(
  folder: string,
  files: readonly PackedFile[],
  limits: ArchiveLimits = archiveLimits,
): Promise<Uint8Array> {
  const parts = files.map((file) => (typeof file === 'string' ? { name: file, bytes: Infinity } : file))
  const wrong = parts.find(({ name }) => !isEntryName(name))
  if (wrong) throw new Error(`not the name of a file in a state bundle: ${JSON.stringify(wrong.name)}`)
  if (parts.length > limits.entries) throw stateTooLarge()
  const tar = createTar()
  const chunks: Buffer[] = []
  const packed = pipeline(tar, createGzip(), async (source: AsyncIterable<Buffer>) => {
    let size = 0
    for await (const chunk of source) {
      size += chunk.length
      if (size > limits.packedBytes) throw stateTooLarge()
      chunks.push(chunk)
    }
  })
  const filled = fill(
    tar,
    folder,
    parts.toSorted((a, b) => (a.name < b.name ? -1 : 1)),
    limits,
  )
  // Both, so that no file is open any more; the reason is with the one that failed first.
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
      // A process may still append to it: what counts is what was there at first.
      const size = Math.min(stats.size, bytes)
      total += size
      if (total > limits.unpackedBytes) throw stateTooLarge()
      const header = { name, size, mode: 0o600, mtime: new Date(0) }
      if (size === 0) await new Promise<void>((resolve) => void tar.entry(header, '', () => resolve()))
      else await pipeline(file.createReadStream({ end: size - 1, autoClose: false }), tar.entry(header))
    } finally {
      await file.close()
    }
  }
  tar.finalize()
}
