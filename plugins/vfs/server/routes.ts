import type { Readable } from 'node:stream'
import type { FastifyRequest } from 'fastify'
import { type App, httpErrors, notFound } from '#kernel'
import type { ErasedPart } from '#contracts/retention'
import { type VfsMountInput, vfsSessionHeader, type VfsView } from '#contracts/vfs'
import { vfsWire } from '#contracts/wire/vfs'
import { optionsOf, serve, takeStreams } from '#kit'
import { conditionOf, matchOf, quoted, rangeOf, sendFile } from '#kit/files'
import type { Audit } from './audit.ts'
import type { Files } from './files.ts'
import type { Mounts } from './mounts.ts'
import type { Callers } from './proof.ts'
import type { Sessions } from './sessions.ts'

type Headers = Readonly<Record<string, string | string[] | undefined>>

export const viewOf = (tenantId: string, headers: Headers): VfsView => {
  const sessionId = headers[vfsSessionHeader]
  return { tenantId, ...(typeof sessionId === 'string' ? { sessionId } : {}) }
}

/** Routes for mounts and their files. The caller is authenticated before a route is reached. */
export function fileRoutes(app: App, callers: Callers, mounts: Mounts, files: Files): void {
  serve(
    app,
    vfsWire.mounts,
    async ({ caller, headers }) => ({ json: await files.mounts(viewOf(caller.tenantId, headers)) }),
    callers,
  )
  serve(
    app,
    vfsWire.putMount,
    async ({ caller, params, body }) => ({
      json: await mounts.put(caller.tenantId, params.mount, body as VfsMountInput),
    }),
    callers,
  )
  serve(
    app,
    vfsWire.deleteMount,
    async ({ caller, params }) => {
      if (!(await mounts.remove(caller.tenantId, params.mount)))
        throw notFound({ message: 'The tenant has no mount of its own of this name.' })
    },
    callers,
  )
  serve(
    app,
    vfsWire.list,
    async ({ caller, headers, params, query }) => ({
      json: await files.list(viewOf(caller.tenantId, headers), params.mount, params['*'].replace(/\/$/, ''), query),
    }),
    callers,
  )
  serve(
    app,
    vfsWire.listMount,
    async ({ caller, headers, params, query }) => ({
      json: await files.list(viewOf(caller.tenantId, headers), params.mount, '', query),
    }),
    callers,
  )
  serve(
    app,
    vfsWire.search,
    async ({ caller, headers, query }) => ({ json: await files.search(viewOf(caller.tenantId, headers), query) }),
    callers,
  )
  serve(
    app,
    vfsWire.remove,
    async ({ caller, headers, params }) => {
      const { 'if-match': match } = headers as Headers
      const { ifMatch } = matchOf(typeof match === 'string' ? match : undefined)
      return { json: await files.remove(viewOf(caller.tenantId, headers), params.mount, params['*'], ifMatch) }
    },
    callers,
  )
  byteRoutes(app, callers, files)
}

interface InMount {
  readonly mount: string
  readonly '*': string
}

/** Routes that stream bytes to and from the client. */
function byteRoutes(app: App, callers: Callers, files: Files): void {
  const view = (request: FastifyRequest): VfsView => viewOf(callers.callerOf(request).tenantId, request.headers)
  app.route({
    ...optionsOf(vfsWire.read),
    async handler(request, reply) {
      const { mount, '*': path } = request.params as InMount
      const { range } = request.headers
      const file = await files.open(
        view(request),
        mount,
        path,
        request.method === 'HEAD'
          ? undefined
          : ({ info }) => {
              const asked = rangeOf(range, info.bytes)
              return asked === 'none' ? 0 : asked ? asked.to - asked.from + 1 : info.bytes
            },
      )
      void reply.header('etag', quoted(file.info.etag))
      return sendFile(request, reply, file)
    },
  })
  void app.register(async (scope) => {
    takeStreams(scope)
    scope.route({
      ...optionsOf(vfsWire.write),
      // Only the path is validated by its schema. The body is checked while it arrives.
      validatorCompiler: ({ schema, httpPart }) =>
        httpPart === 'body'
          ? () => true
          : app.validatorCompiler!({
              schema,
              httpPart: httpPart ?? '',
              method: 'PUT',
              url: vfsWire.write.path,
            } as never),
      async handler(request, reply) {
        const { headers } = request
        const { mount, '*': path } = request.params as InMount
        const length = headers['content-length']
        try {
          const { entry, created } = await files.write(view(request), mount, path, {
            body: arriving(request),
            bytes: length === undefined ? undefined : Number(length),
            contentType: headers['content-type'] ?? 'application/octet-stream',
            when: conditionOf(headers),
          })
          return reply
            .code(created ? 201 : 200)
            .header('etag', quoted(entry.etag))
            .send(entry)
        } catch (error) {
          // The rest of the body is not read, so the connection cannot be used again.
          if (!request.raw.complete) void reply.header('connection', 'close')
          throw error
        }
      },
    })
  })
}

/** Milliseconds without any bytes after which a sender times out. */
const silentMs = 60_000

/**
 * The body of a request as it arrives. There is no total timeout while bytes keep coming. The connection stays open, so that a refused client gets
 * the reason.
 */
async function* arriving({ body }: FastifyRequest): AsyncGenerator<Uint8Array> {
  if (body === undefined || body === null) return
  const stream = body as Readable
  const silence = setTimeout(() => stream.destroy(httpErrors.requestTimeout()), silentMs).unref()
  try {
    for await (const chunk of stream.iterator({ destroyOnReturn: false })) {
      silence.refresh()
      yield chunk as Uint8Array
      silence.refresh()
    }
  } finally {
    clearTimeout(silence)
  }
}

interface Parts {
  readonly sessions: Sessions
  readonly audit: Audit
  /** Deletes some of a tenant's data, and says if there is more. It begins nothing more once the signal has aborted. */
  erase(tenantId: string, signal: AbortSignal): Promise<ErasedPart>
}

/** Routes for leases of sessions, for their audit, and for a tenant's usage, legal hold and erasure. */
export function sessionRoutes(app: App, callers: Callers, { sessions, audit, erase }: Parts): void {
  serve(
    app,
    vfsWire.sessions,
    async ({ caller, query: { cursor = '', limit = 100 } }) => ({
      json: await sessions.list(caller.tenantId, cursor, limit),
    }),
    callers,
  )
  serve(
    app,
    vfsWire.openSession,
    async ({ caller: { tenantId }, params: { id }, body }) => {
      if (!(await sessions.isOpen(tenantId, id))) await audit.room(tenantId)
      return { json: await sessions.open(tenantId, id, body) }
    },
    callers,
  )
  serve(
    app,
    vfsWire.session,
    async ({ caller, params }) => ({ json: await sessions.show(caller.tenantId, params.id) }),
    callers,
  )
  serve(
    app,
    vfsWire.closeSession,
    async ({ caller, params }) => {
      if (await sessions.close(caller.tenantId, params.id)) await audit.rest(caller.tenantId, params.id)
    },
    callers,
  )
  serve(
    app,
    vfsWire.audit,
    async ({ caller, params, query: { cursor, limit = 100 } }) => {
      const before = cursor === undefined ? Infinity : Number(cursor)
      const found = await audit.read(caller.tenantId, params.id, before, limit)
      if (found) return { json: found }
      // Without any record: answers 404 unless the session is open.
      await sessions.show(caller.tenantId, params.id)
      return { json: { entries: [] } }
    },
    callers,
  )
  serve(app, vfsWire.usage, async ({ caller }) => ({ json: await sessions.usage(caller.tenantId) }), callers)
  const { conductors } = callers
  serve(app, vfsWire.hold, async ({ caller, body }) => sessions.hold(caller.tenantId, body.held), conductors)
  serve(app, vfsWire.erase, async ({ caller, signal }) => ({ json: await erase(caller.tenantId, signal) }), conductors)
}
