import type { FastifyReply, FastifyRequest } from 'fastify'
import type { App } from '#kernel'
import type { Admitted, Hub } from './hub.ts'
import type { RemoteWorker } from './worker.ts'
import { sandboxErrors } from '../errors.ts'

/** Authenticates workers. Each worker may use only the routes of its own session. */
export interface WorkerAuth {
  /** Protects all routes of a scope. `credential` finds the header value that holds the token. */
  protect(app: App, credential?: (request: FastifyRequest) => string | undefined): void
  /** The worker that calls, with the expiry of its token. */
  of(request: FastifyRequest): Admitted
}

/** `served` is true when this runner starts sandbox workers. If not, each of their callbacks is answered with 503. */
export function createWorkerAuth(hub: Hub, served: boolean): WorkerAuth {
  const admitted = new WeakMap<FastifyRequest, Admitted>()
  return {
    protect(app, credential = ({ headers }) => headers.authorization) {
      app.addHook('onRequest', async (request) => {
        if (!served) throw sandboxErrors.dynamicWorkersUnavailable()
        const { id } = request.params as { id: string }
        admitted.set(request, await hub.admit(credential(request), id))
      })
    },
    of(request) {
      const found = admitted.get(request)
      if (!found) throw new Error(`${request.routeOptions.url} reads the calling worker, but has no guard`)
      return found
    },
  }
}

/** Aborts when the caller leaves, or when one of `others` aborts. */
export function whileCalled(reply: FastifyReply, ...others: readonly AbortSignal[]): AbortSignal {
  const gone = new AbortController()
  reply.raw.once('close', () => gone.abort(sandboxErrors.callerLeft()))
  return AbortSignal.any([gone.signal, ...others])
}

/** Allows one exchange of a kind with each worker, because a body may have tens of MiB and a worker could open hundreds of connections. */
interface Newest {
  /** Closes the connection of the previous exchange if it is still open. */
  begin(worker: RemoteWorker, reply: FastifyReply): void
}

function createNewest(): Newest {
  const latest = new WeakMap<RemoteWorker, FastifyReply>()
  return {
    begin(worker, reply) {
      latest.get(worker)?.raw.destroy()
      latest.set(worker, reply)
      reply.raw.once('close', () => {
        if (latest.get(worker) === reply) latest.delete(worker)
      })
    },
  }
}

/** One limit for each kind of exchange, shared by all listeners. */
export interface NewestOfAll {
  readonly answers: Newest
  readonly downloads: Newest
  readonly uploads: Newest
}

export const createNewestOfAll = (): NewestOfAll => ({
  answers: createNewest(),
  downloads: createNewest(),
  uploads: createNewest(),
})
