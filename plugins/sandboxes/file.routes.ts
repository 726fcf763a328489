import { createHash } from 'node:crypto'
import { Readable } from 'node:stream'
import { Type } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { access, type App, failures, negotiated, NoContent, notFound } from '#kernel'
import { objectErrors } from '#contracts/object-store'
import { copyBounds, type SessionVfs, VfsTree } from '#contracts/session-vfs'
import { settleFilesMs } from '#contracts/wire/worker'
import { asExecutable, isExecutable, isVfsPath, mountName, VfsEntry, vfsErrors } from '#contracts/vfs'
import { sandboxErrors } from './errors.ts'
import { createAtOnce, whileCalled, type WorkerAuth } from './hub/auth.ts'
import { takeStreams } from '#kit'
import { contentTypeOf } from '#kit/files'
import { refusals, tags } from './hub/routes.ts'
import type { RemoteWorker } from './hub/worker.ts'

/** Returns the VirtualFS of a worker's session; undefined when the session uses none. */
export type FilesOf = (worker: RemoteWorker) => SessionVfs | undefined

/** The most concurrent requests of one worker. */
const mostAtOnce = 8

const WorkerParams = Type.Object({ id: Type.String({ maxLength: 128, description: 'Id of the session.' }) })
const FileParams = Type.Object({
  ...WorkerParams.properties,
  mount: mountName,
  '*': Type.String({ description: 'The path below the mount.' }),
})
const Tag = Type.Optional(Type.String({ maxLength: 300, pattern: '^("[^"]*"|\\*)$' }))
const known = [
  ...refusals,
  sandboxErrors.noVfs,
  sandboxErrors.tooManyFileRequests,
  vfsErrors.noVfsSession,
  vfsErrors.mountUnavailable,
  vfsErrors.vfsUpstreamUnavailable,
]
const ofFile = [...known, vfsErrors.invalidPath, vfsErrors.mountNotAllowed, vfsErrors.readOnlyMount]

/**
 * The VirtualFS for the worker in a sandbox. The worker copies files in and out itself: the runner opens no file of a sandbox, and the worker reaches
 * only what the lease of its session allows. The routes need a scope of their own, because bodies are streams.
 */
export const fileRoutes = (auth: WorkerAuth, filesOf: FilesOf) => async (app: App) => {
  takeStreams(app)
  auth.protect(app)
  const begin = createBegin(auth, filesOf)
  readRoutes(app, begin)
  writeRoutes(app, begin)
}

/** Lets a request in, and counts it until it is over. */
type Begin = (request: FastifyRequest, reply: FastifyReply) => SessionVfs

function createBegin(auth: WorkerAuth, filesOf: FilesOf): Begin {
  const count = createAtOnce(mostAtOnce, sandboxErrors.tooManyFileRequests)
  return (request, reply) => {
    const { worker } = auth.of(request)
    const files = filesOf(worker)
    if (!files) throw sandboxErrors.noVfs()
    count(worker, reply)
    worker.seen()
    return files
  }
}

/** Longer than the worker waits. A stalled body cannot keep its slot. */
const inTime = (reply: FastifyReply): AbortSignal => whileCalled(reply, AbortSignal.timeout(2 * settleFilesMs))

const place = ({ mount, '*': path }: { readonly mount: string; readonly '*': string }): [string, string] => {
  if (!isVfsPath(path)) throw vfsErrors.invalidPath()
  return [mount, path]
}

function readRoutes(app: App, begin: Begin): void {
  app.get(
    '/runner/worker/:id/vfs',
    {
      ...access('worker'),
      exposeHeadRoute: false,
      schema: {
        tags,
        summary: "List the session's files of the VirtualFS",
        description: 'The files that a sandbox gets. 304 for the `ETag` of an unchanged list.',
        params: WorkerParams,
        response: { 200: VfsTree, 304: NoContent, ...failures(...known) },
      },
    },
    async (request, reply) => {
      const tree = await begin(request, reply).tree({ signal: inTime(reply) })
      const text = JSON.stringify(tree)
      const etag = `"${createHash('sha256').update(text).digest('base64url')}"`
      void reply.header('etag', etag)
      if (request.headers['if-none-match'] === etag) return reply.code(304).send()
      return reply.serializer(() => text).send(tree)
    },
  )
  app.get(
    '/runner/worker/:id/vfs/:mount/*',
    {
      ...access('worker'),
      exposeHeadRoute: false,
      schema: {
        tags,
        summary: 'Read a file of the VirtualFS',
        params: FileParams,
        response: {
          200: negotiated('Its bytes.', { 'application/octet-stream': Type.String({ format: 'binary' }) }),
          ...failures(...ofFile, notFound, sandboxErrors.fileTooLarge),
        },
      },
    },
    async (request, reply) => {
      const files = begin(request, reply)
      const file = await files.read(...place(request.params), { signal: inTime(reply) })
      if (!file) throw notFound()
      const body = Readable.from(file.body)
      const { bytes, etag } = file.entry
      if (bytes !== undefined && bytes > copyBounds.fileBytes) {
        body.destroy()
        throw sandboxErrors.fileTooLarge()
      }
      if (bytes !== undefined) void reply.header('content-length', bytes)
      if (etag !== undefined) void reply.header('etag', `"${etag}"`)
      const type = 'application/octet-stream'
      return reply.type(isExecutable(file.entry.contentType) ? asExecutable(type) : type).send(body)
    },
  )
}

function writeRoutes(app: App, begin: Begin): void {
  app.put(
    '/runner/worker/:id/vfs/:mount/*',
    {
      ...access('worker', { upload: true }),
      schema: {
        tags,
        summary: 'Write a file of the VirtualFS',
        description: 'With `If-Match` or `If-None-Match: *`. An incomplete body is not stored.',
        consumes: ['application/octet-stream'],
        params: FileParams,
        headers: Type.Object({ 'if-match': Tag, 'if-none-match': Type.Optional(Type.Literal('*')) }),
        body: Type.Unknown({ description: 'The bytes.' }),
        response: {
          200: VfsEntry,
          ...failures(
            ...ofFile,
            objectErrors.preconditionFailed,
            sandboxErrors.lengthRequired,
            sandboxErrors.fileTooLarge,
          ),
        },
      },
    },
    async (request, reply) => {
      const files = begin(request, reply)
      const where = place(request.params)
      const { 'content-length': length, 'if-match': match, 'if-none-match': none } = request.headers
      if (length === undefined) throw sandboxErrors.lengthRequired()
      if (Number(length) > copyBounds.fileBytes) throw sandboxErrors.fileTooLarge()
      const when = {
        ...(match === undefined ? {} : { ifMatch: unquoted(match) }),
        ...(none ? { ifNoneMatch: none } : {}),
      }
      // The parser gives no stream for an empty body.
      const body = Number(length) === 0 ? Buffer.alloc(0) : (request.body as Readable)
      // A disk stores no content types, but a later download needs one.
      const type = contentTypeOf(where[1]) ?? 'application/octet-stream'
      const contentType = isExecutable(request.headers['content-type']) ? asExecutable(type) : type
      return files.write(...where, { body, contentType, ...when }, { signal: inTime(reply) })
    },
  )
  app.delete(
    '/runner/worker/:id/vfs/:mount/*',
    {
      ...access('worker'),
      schema: {
        tags,
        summary: 'Delete a file of the VirtualFS',
        description: 'Respects `If-Match`. A missing file is no error.',
        params: FileParams,
        headers: Type.Object({ 'if-match': Tag }),
        response: { 204: NoContent, ...failures(...ofFile, objectErrors.preconditionFailed) },
      },
    },
    async (request, reply) => {
      const files = begin(request, reply)
      const { 'if-match': match } = request.headers
      const when = match === undefined ? {} : { ifMatch: unquoted(match) }
      await files.remove(...place(request.params), { signal: inTime(reply), ...when })
      return reply.code(204).send()
    },
  )
}

const unquoted = (tag: string): string => tag.replace(/^"|"$/g, '')
