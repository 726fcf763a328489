import type { Readable } from 'node:stream'
import { type Static, type TSchema, Type } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { VfsTree } from '#contracts/session-vfs'
import { asExecutable, isExecutable } from '#contracts/vfs'
import { workerPaths } from '#contracts/wire/worker'
import { readBody, type Reply } from '#kit'
import { workerErrors } from '../errors.ts'
import type { WorkerIdentity } from '../identity/identity.ts'
import type { Connection } from '../connection.ts'

/** Room for a list of 2,000 paths of up to 1 KiB, with their properties. */
const maxTreeBytes = 8 * 1024 * 1024
const maxSmallBytes = 64 * 1024
/** The part of the answer that the worker needs. */
const Written = Type.Object({ etag: Type.String() })

/** The precondition of a write or a deletion: the file has this etag, or (undefined) does not exist. */
type Expected = string | undefined

/**
 * The session's files of the VirtualFS, which the runner serves. AppErrors: `file_refused` when a retry would fail again, and those of
 * `RunnerClient`.
 */
export interface RemoteFiles {
  tree(signal: AbortSignal): Promise<VfsTree>
  /** Undefined when the file no longer exists. */
  read(mount: string, path: string, signal: AbortSignal): Promise<RemoteFile | undefined>
  /** Resolves to the new etag, or to 'changed' when the precondition failed and nothing was written. */
  write(file: Upload, signal: AbortSignal): Promise<string | 'changed'>
  /** False when the file has another etag, so it was not removed. */
  remove(mount: string, path: string, etag: string, signal: AbortSignal): Promise<boolean>
}

interface RemoteFile {
  readonly etag: string | undefined
  readonly executable: boolean
  readonly body: AsyncIterable<Buffer>
}

interface Upload {
  readonly mount: string
  readonly path: string
  readonly bytes: number
  readonly executable: boolean
  readonly body: Readable
  readonly expected: Expected
}

export function remoteFiles(identity: WorkerIdentity, connection: Connection): RemoteFiles {
  let last: { readonly etag: string; readonly tree: VfsTree; readonly sessionId: string } | undefined
  const paths = () => workerPaths(identity.sessionId)
  return {
    async tree(signal) {
      const { sessionId } = identity
      const known = last?.sessionId === sessionId ? last : undefined
      const headers = known ? { 'if-none-match': known.etag } : {}
      const reply = await connection.open({ method: 'GET', path: paths().vfsTree, headers }, signal)
      if (known && reply.status === 304) {
        await reply.body.return?.()
        return known.tree
      }
      const tree = await jsonOf(reply, VfsTree, maxTreeBytes)
      last = { etag: String(reply.headers['etag']), tree, sessionId }
      return tree
    },
    async read(mount, path, signal) {
      const reply = await connection.open({ method: 'GET', path: paths().vfsFile(mount, path) }, signal)
      const executable = isExecutable(reply.headers['content-type']?.toString())
      if (reply.status === 200) return { etag: etagOf(reply), executable, body: reply.body }
      const error = await refusalOf(reply)
      if (reply.status === 404) return undefined
      throw error
    },
    async write({ mount, path, bytes, executable, body, expected }, signal) {
      const condition = expected === undefined ? { 'if-none-match': '*' } : { 'if-match': `"${expected}"` }
      const type = executable ? asExecutable('application/octet-stream') : 'application/octet-stream'
      const headers = { 'content-type': type, 'content-length': String(bytes), ...condition }
      const request = { method: 'PUT', path: paths().vfsFile(mount, path), headers, body } as const
      const reply = await connection.open(request, signal)
      if (reply.status !== 412) return (await jsonOf(reply, Written, maxSmallBytes)).etag
      await readBody(reply.body, maxSmallBytes)
      return 'changed'
    },
    async remove(mount, path, etag, signal) {
      const headers = { 'if-match': `"${etag}"` }
      const reply = await connection.open({ method: 'DELETE', path: paths().vfsFile(mount, path), headers }, signal)
      if (reply.status === 412 || (reply.status >= 200 && reply.status <= 299)) {
        await readBody(reply.body, maxSmallBytes)
        return reply.status !== 412
      }
      throw await refusalOf(reply)
    },
  }
}

const etagOf = ({ headers }: Reply): string | undefined => {
  const tag = headers['etag']
  return typeof tag === 'string' ? tag.replaceAll('"', '') : undefined
}

async function jsonOf<S extends TSchema>(reply: Reply, schema: S, most: number): Promise<Static<S>> {
  if (reply.status !== 200) throw await refusalOf(reply)
  const bytes = await readBody(reply.body, most)
  const value: unknown = JSON.parse(bytes?.toString('utf8') ?? 'null')
  if (!Value.Check(schema, value)) throw workerErrors.runnerRefused({ message: 'The runner answers in another form.' })
  return value
}

/** A 4xx answer says why this file is refused. Any other failure may pass, and so may 401, 408 and 429. */
async function refusalOf(reply: Reply): Promise<Error> {
  const text = (await readBody(reply.body, maxSmallBytes))?.toString('utf8') ?? ''
  let said: { readonly error?: unknown; readonly message?: unknown } = {}
  try {
    said = (JSON.parse(text) ?? {}) as typeof said
  } catch {
    // A proxy in between may answer with text that is no JSON.
  }
  const message = String(said.message ?? said.error ?? `status ${reply.status}`)
  const isFinal = reply.status >= 400 && reply.status <= 499 && ![401, 408, 429].includes(reply.status)
  return isFinal ? workerErrors.fileRefused({ message }) : workerErrors.runnerUnreachable({ message })
}
