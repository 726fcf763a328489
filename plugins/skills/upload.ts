import { setImmediate as turn } from 'node:timers/promises'
import type { FastifyRequest } from 'fastify'
import { isAppError } from '#kernel'
import { overLimit } from '#contracts/limits'
import { AtOnce } from '#kit'
import { importErrors, tooManyParts } from './errors.ts'
import { clip } from './format.ts'
import { type GivenFile, mostFiles } from './package.ts'
import { mostPath } from './paths.ts'

/** More parts than a skill may have files, so that too many files are reported together with the other problems. */
const mostParts = 2 * mostFiles
const shebang = Buffer.from([0x23, 0x21])
/** The content type by which a client that packs a folder marks a symbolic link. */
const linkType = 'inode/symlink'

/** Small parts arrive together, a hundred in one read of the connection, and take no turn of the event loop by themselves. */
const partsAtOnce = 32

/** Twice the longest path of a skill, so that a path which is a little too long is reported together with the other problems. */
const mostName = 2 * mostPath

/** Concurrent uploads of one tenant. Each is held in memory while it is read. */
const mostAtOnce = 2

/** Reads uploads, with a limit per tenant in this process. */
export class Uploads {
  readonly #underWay = new AtOnce()

  /** Reads one upload. Rejects with 429 `too_many_imports` above the tenant's limit, and as `readUpload` does. */
  async read(tenantId: string, request: FastifyRequest, mostBytes: number): Promise<GivenFile[]> {
    if (this.#underWay.of(tenantId) >= mostAtOnce) throw importErrors.tooManyImports()
    const end = this.#underWay.begin(tenantId)
    try {
      return await readUpload(request, mostBytes)
    } finally {
      end()
    }
  }
}

/** Reads the files of an upload into memory, up to `mostBytes`. Rejects with 409 `limit_exceeded` beyond that. */
async function readUpload(request: FastifyRequest, mostBytes: number): Promise<GivenFile[]> {
  if (!request.isMultipart()) throw importErrors.notMultipart()
  const files: GivenFile[] = []
  const executable = new Set<string>()
  let left = mostBytes
  const limits = { fileSize: mostBytes + 1, parts: mostParts, files: mostParts, fields: mostParts, fieldSize: mostName }
  try {
    // Without this option a part's name would lose its folders, and the checks of paths could not see them.
    for await (const part of request.parts({ limits, preservePath: true })) {
      if (part.type === 'field') {
        if (part.fieldname === 'executable') executable.add(String(part.value))
        else
          throw importErrors.brokenUpload({
            message: `The part '${clip(part.fieldname)}' is no file: send parts \`files\`, each with a filename.`,
          })
        continue
      }
      if (part.fieldname !== 'files')
        throw importErrors.brokenUpload({
          message: `The part '${clip(part.fieldname)}' is not known; files are parts named \`files\`.`,
        })
      // A part of the type `application/octet-stream` is a file even without a name.
      const { filename: path = '' } = part
      // A thousand names are kept, and each costs time by its length.
      if (Buffer.byteLength(path) > mostName)
        throw importErrors.brokenUpload({
          message: `The filename '${clip(path)}' is longer than ${mostName} bytes.`,
        })
      if (files.length % partsAtOnce === partsAtOnce - 1) await turn()
      const chunks: Buffer[] = []
      for await (const chunk of part.file as AsyncIterable<Buffer>) {
        left -= chunk.length
        if (left < 0) throw overLimit('skillBytes', mostBytes)
        chunks.push(chunk)
      }
      const bytes = Buffer.concat(chunks)
      files.push({
        path,
        bytes,
        executable: bytes.subarray(0, 2).equals(shebang),
        ...(part.mimetype === linkType ? { special: true } : {}),
      })
    }
  } catch (error) {
    throw failureOf(error, mostBytes)
  }
  return files.map((file) => ({ ...file, executable: file.executable || executable.has(file.path) }))
}

function failureOf(error: unknown, mostBytes: number): unknown {
  if (isAppError(error)) return error
  const { code } = error as { readonly code?: string }
  if (code === 'FST_REQ_FILE_TOO_LARGE') return overLimit('skillBytes', mostBytes)
  if (code === 'FST_PARTS_LIMIT' || code === 'FST_FILES_LIMIT' || code === 'FST_FIELDS_LIMIT')
    return tooManyParts(mostParts)
  return importErrors.brokenUpload({ cause: error })
}
