import { Readable } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from '@sinclair/typebox'
import { access, type App, failures, notFound } from '#kernel'
import { limitErrors } from '#contracts/limits'
import { vfsErrors } from '#contracts/vfs'
import { isOurs, opensSession, targetOf } from './target.ts'

type PassOn = (request: FastifyRequest, reply: FastifyReply, target: string) => FastifyReply

const about =
  'What [the VirtualFS server](vfs.json) answers to the path without `/api`, for the tenant of the key. `X-VFS-Session` selects the view of a session.'

const methods = {
  GET: { who: 'member', summary: 'Read from the VirtualFS' },
  PUT: { who: 'admin', summary: 'Write to the VirtualFS' },
  DELETE: { who: 'admin', summary: 'Delete from the VirtualFS' },
} as const

/** Everything below `/api/vfs/` that this server has no route of its own for. */
export function proxyRoutes(app: App, passOn: PassOn): void {
  // Bodies go on as they come. An upstream that answers before it has all of one has it destroyed, and with it would go the connection of
  // the client, who is to hear the answer.
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', async (_request: unknown, body: Readable) =>
    Readable.from(body.iterator({ destroyOnReturn: false }), { objectMode: false }),
  )
  for (const [method, { who, summary }] of Object.entries(methods)) {
    app.route({
      method: method as keyof typeof methods,
      url: '/api/vfs/*',
      ...access(who, method === 'GET' ? {} : { upload: true }),
      schema: {
        tags: ['vfs'],
        summary,
        description: about,
        params: Type.Object({
          '*': Type.String({ description: 'Path on the VirtualFS server, e.g. `mounts` or `files/{mount}/{path}`.' }),
        }),
        response: {
          '2xx': { description: 'The answer of the VirtualFS server, as it is.' },
          ...failures(notFound, vfsErrors.invalidPath, limitErrors.limitReached, vfsErrors.vfsUpstreamUnavailable),
        },
      },
      // Paths are judged as they were written, and bodies are not read here.
      validatorCompiler: () => () => true,
      async handler(request, reply) {
        const target = targetOf(request.raw.url ?? '')
        if (target === undefined) throw vfsErrors.invalidPath()
        if (isOurs(target) || opensSession(method, target)) throw notFound()
        return passOn(request, reply, target)
      },
    })
  }
}
