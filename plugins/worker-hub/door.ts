import type { FastifyReply, FastifyRequest } from 'fastify'
import type { App } from '#kernel'
import { callerLeft, dynamicWorkersUnavailable } from './errors.ts'
import type { Admitted, Hub } from './hub.ts'

/** Lets workers in to the routes of a scope, each to those of its own session. */
export interface Door {
  /** `credential` finds the header value with the token. */
  protect(app: App, credential?: (request: FastifyRequest) => string | undefined): void
  of(request: FastifyRequest): Admitted
}

/** `served`: this runner starts sandbox workers. */
export function createDoor(hub: Hub, served: boolean): Door {
  const admitted = new WeakMap<FastifyRequest, Admitted>()
  return {
    protect(app, credential = ({ headers }) => headers.authorization) {
      app.addHook('onRequest', async (request) => {
        if (!served) throw dynamicWorkersUnavailable()
        const { id } = request.params as { id: string }
        admitted.set(request, await hub.admit(credential(request), id))
      })
    },
    of(request) {
      const found = admitted.get(request)
      if (!found) throw new Error(`${request.routeOptions.url} asks which worker calls, but was never protected`)
      return found
    },
  }
}

/** Aborts when the caller has left, and with `others`. */
export function whileCalled(reply: FastifyReply, ...others: readonly AbortSignal[]): AbortSignal {
  const gone = new AbortController()
  reply.raw.once('close', () => gone.abort(callerLeft()))
  return AbortSignal.any([gone.signal, ...others])
}
