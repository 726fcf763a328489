import type { FastifyReply, FastifyRequest } from 'fastify'
import { type App, type AppError, isAppError, onceClosed } from '#kernel'
import { workerTokenErrors } from '#contracts/workers'
import type { ClientAddress, WrongKeys } from '#kit'
import type { Admitted, Hub } from './hub.ts'
import type { RemoteWorker } from './worker.ts'
import { nameOf } from './tokens.ts'
import { sandboxErrors } from '../errors.ts'

/** Authenticates workers. Each worker may use only the routes of its own session. */
export interface WorkerAuth {
  /** Protects all routes of a scope. `credential` finds the header value that holds the token. */
  protect(app: App, credential?: (request: FastifyRequest) => string | undefined): void
  /** The worker that calls, with the expiry of its token. */
  of(request: FastifyRequest): Admitted
}

export interface WorkerAuthOptions {
  readonly hub: Hub
  /** True when this runner starts sandbox workers. If not, each of their callbacks is answered with 503. */
  readonly served: boolean
  readonly clientOf: ClientAddress
  readonly wrongKeys: WrongKeys
}

export function createWorkerAuth({ hub, served, clientOf, wrongKeys }: WorkerAuthOptions): WorkerAuth {
  /** Verifies a token. An address that has sent too many wrong ones gets 429, unless the token worked before or is the worker's present one. */
  const admit = async (request: FastifyRequest, authorization: string | undefined, id: string): Promise<Admitted> => {
    // A request without a token does not count as a wrong one.
    if (!authorization) return hub.admit(authorization, id)
    const address = clientOf(request)
    const name = nameOf(authorization)
    await wrongKeys.check(address, () => wrongKeys.isGood(name) || hub.issued(name, id))
    try {
      const found = await hub.admit(authorization, id)
      wrongKeys.worked(name)
      return found
    } catch (error) {
      // Any other token was once issued: a worker that outlives its session is no attempt to guess.
      if (isAppError(error) && error.code === workerTokenErrors.malformed.row.code) wrongKeys.failed(address, name)
      throw error
    }
  }
  const admitted = new WeakMap<FastifyRequest, Admitted>()
  return {
    protect(app, credential = ({ headers }) => headers.authorization) {
      app.addHook('onRequest', async (request) => {
        if (!served) throw sandboxErrors.dynamicWorkersUnavailable()
        const { id } = request.params as { id: string }
        admitted.set(request, await admit(request, credential(request), id))
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
  onceClosed(reply.raw, () => gone.abort(sandboxErrors.callerLeft()))
  return AbortSignal.any([gone.signal, ...others])
}

/**
 * Counts requests until they are over, by whom or what they are of, and throws `tooMany` when there are so many.
 */
export function createAtOnce(
  most: number,
  tooMany: (options: { readonly headers: { readonly 'retry-after': string } }) => AppError,
) {
  const underWay = new WeakMap<object, number>()
  return (of: object, { raw }: FastifyReply): void => {
    // The caller has left already, so `close` will not come again and the request would be counted for ever.
    if (raw.destroyed) throw sandboxErrors.callerLeft()
    const count = underWay.get(of) ?? 0
    if (count >= most) throw tooMany({ headers: { 'retry-after': '1' } })
    underWay.set(of, count + 1)
    raw.once('close', () => underWay.set(of, underWay.get(of)! - 1))
  }
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
      onceClosed(reply.raw, () => {
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
