import type { FastifyContextConfig, FastifyRequest, RouteOptions } from 'fastify'
import { access } from './access.ts'

/**
 * As `access`, for a route that bounds by itself how long its body may take to arrive: the listener's limit holds until the
 * request was let in, and ends when its handler begins.
 */
export const uploadAccess = (who: string): { config: FastifyContextConfig } => ({
  config: { ...access(who).config, upload: true } as FastifyContextConfig,
})

const isUpload = (config: unknown): boolean => (config as { upload?: unknown } | undefined)?.upload === true

const hasBody = ({ headers }: FastifyRequest): boolean =>
  headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0'

/**
 * Node's limit on the arrival of a request holds for a whole server. A listener with an upload is watched here instead: the same
 * limit for each request by itself.
 */
export interface Arrivals {
  /** For each new route. True once there is an upload: from then on, and not before, every request is given to `begin`. */
  add(route: RouteOptions): boolean
  begin(request: FastifyRequest): void
}

/** `onLate` answers on the socket and closes it. */
export function createArrivals(limitMs: number, onLate: (request: FastifyRequest) => void): Arrivals {
  const limits = new WeakMap<FastifyRequest, NodeJS.Timeout>()
  let watched = false
  return {
    add(route) {
      if (isUpload(route.config)) {
        watched = true
        const others = route.preHandler === undefined ? [] : [route.preHandler].flat()
        route.preHandler = [(request, _reply, done) => (clearTimeout(limits.get(request)), done()), ...others]
      }
      return watched
    },
    begin(request) {
      if (!hasBody(request)) return
      const { raw } = request
      // A request that was answered early closes without a word when its connection does: it may not hold the process.
      const limit = setTimeout(onLate, limitMs, request).unref()
      limits.set(request, limit)
      const arrived = (): void => clearTimeout(limit)
      raw.once('end', arrived).once('close', arrived)
    },
  }
}
