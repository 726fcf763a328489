import { type Static, Type } from '@sinclair/typebox'
import type { FastifyRequest } from 'fastify'
import { access, type App, definePlugin, failures, maybe, negotiated, notFound, unauthorized } from '#kernel'
import { ReservedObjects } from '#contracts/linked-objects'
import { objectErrors, type ObjectStore } from '#contracts/object-store'
import { type RunnerSession, RunnerSessions } from '#contracts/runner'
import { WorkerHub, workerTokenErrors } from '#contracts/workers'
import { sendBody } from '#kit/files'

/**
 * Serves linked contents of a session's runs to the runtime that executes them. The route accepts the same token as the session's tools, and
 * streams bytes from the object store to the reader.
 */
export default definePlugin({
  name: 'session-files',
  errors: [workerTokenErrors, objectErrors],
  requires: { sessions: RunnerSessions, objects: ReservedObjects, hub: maybe(WorkerHub) },
  async setup({ deps: { sessions, objects, hub }, listeners, routes }) {
    /** Admits the run under way on this runner by its token. */
    const admit: Admit = async (authorization, id) => {
      const session = sessions.get(id)
      if (session?.profile.workerMode === 'sandbox') return ofWorker(authorization, id)
      if (!session || !sessions.admits(session, authorization)) throw noToken()
      return session
    }
    const ofWorker: Admit = async (authorization, id) => {
      const session = sessions.get(id)
      if (session?.profile.workerMode !== 'sandbox' || !hub) throw workerTokenErrors.superseded()
      await hub.authorize(authorization, session.tenantId, id)
      return session
    }
    routes('runner', async (app) => fileRoute(app, 'session', admit, objects))
    if (listeners.includes('workers')) {
      routes('workers', async (app) => fileRoute(app, 'worker', ofWorker, objects))
    }
    return {}
  },
})

/** Resolves to the session of the run whose token was sent. Sessions of all tenants are served, but each can read only its own tenant's objects. */
type Admit = (authorization: string | undefined, sessionId: string) => Promise<RunnerSession>

const noToken = (): Error =>
  unauthorized({ message: 'Send the token of the run under way as a bearer: its envelope has it as sessionMcpToken.' })

const Params = Type.Object({
  id: Type.String({ maxLength: 128 }),
  key: Type.String({ maxLength: 100, description: '`key` of a link that the run brought.' }),
})
const keyForm = /^[a-z0-9_]{1,100}$/

function fileRoute(app: App, who: string, admit: Admit, objects: ObjectStore): void {
  const admitted = new WeakMap<FastifyRequest, RunnerSession>()
  app.get(
    '/runner/sessions/:id/files/:key',
    {
      ...access(who),
      exposeHeadRoute: false,
      // Before anything of the request is checked: a stranger must learn nothing from its mistakes.
      async onRequest(request) {
        const { id } = request.params as Static<typeof Params>
        admitted.set(request, await admit(request.headers.authorization, id))
      },
      schema: {
        tags: ['runs'],
        summary: 'Get a linked content',
        description: 'Of the tenant of the session, by the key that its link names. The reader compares the digest.',
        params: Params,
        response: {
          200: negotiated('The bytes.', {
            'application/octet-stream': Type.Unsafe<unknown>(Type.String({ format: 'binary' })),
          }),
          ...failures(
            ...Object.values(workerTokenErrors),
            unauthorized,
            notFound,
            objectErrors.storageUnavailable,
            objectErrors.storageMisconfigured,
            objectErrors.storageNotConfigured,
          ),
        },
      },
    },
    async (request, reply) => {
      const { key } = request.params
      const { tenantId } = admitted.get(request)!
      const found = keyForm.test(key) ? await objects.open(tenantId, key) : undefined
      if (!found) throw notFound()
      void reply.type('application/octet-stream').header('content-length', found.info.bytes)
      return sendBody(reply, await found.read())
    },
  )
}
