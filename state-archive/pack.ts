import { constants } from 'node:fs'
import { open } from 'node:fs/promises'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { createGzip } from 'node:zlib'
import { pack as createTar, type Pack } from 'tar-stream'
import { stateTooLarge } from './errors.ts'
import { type ArchiveLimits, archiveLimits } from './limits.ts'
import { isEntryName } from './names.ts'

/** The named files of a folder as a gzip tar. The same files give the same bytes. Rejects when one of them is not a regular file. */
export async function pack(
  folder: string,
  names: readonly string[],
  limits: ArchiveLimits = archiveLimits,
): Promise<Uint8Array> {
  const wrong = names.find((name) => !isEntryName(name))
  if (wrong !== undefined) throw new Error(`not the name of a file in a state bundle: ${JSON.stringify(wrong)}`)
  if (names.length > limits.entries) throw stateTooLarge()
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
  const filled = fill(tar, folder, names.toSorted(), limits)
  // Both, so that no file is open any more; the reason is with the one that failed first.
  filled.catch((error: Error) => tar.destroy(error))
  const [result] = await Promise.allSettled([packed, filled])
  if (result.status === 'rejected') throw result.reason
  return Buffer.concat(chunks)
}

async function fill(tar: Pack, folder: string, names: readonly string[], limits: ArchiveLimits): Promise<void> {
  let total = 0
  for (const name of names) {
    const file = await open(join(folder, name), constants.O_RDONLY | constants.O_NOFOLLOW)
    try {
      const stats = await file.stat()
      if (!stats.isFile()) throw new Error(`not a regular file: ${name}`)
      total += stats.size
      if (total > limits.unpackedBytes) throw stateTooLarge()
      const header = { name, size: stats.size, mode: 0o600, mtime: new Date(0) }
      if (stats.size === 0) await new Promise<void>((resolve) => void tar.entry(header, '', () => resolve()))
      // A process may still append to it: what counts is what was there at first.
      else await pipeline(file.createReadStream({ end: stats.size - 1, autoClose: false }), tar.entry(header))
    } finally {
      await file.close()
    }
  }
  tar.finalize()
}
