import type { IncomingMessage } from 'node:http'
import type { FastifyContextConfig, FastifyRequest } from 'fastify'
import type { App } from '../http/app.ts'

/** In the `config` of a route that stands for other hosts: the listener's own names do not matter there. */
export const ofOtherHosts = { otherHosts: true } as FastifyContextConfig
export const isOfOtherHosts = ({ routeOptions: { config } }: FastifyRequest): boolean =>
  (config as { readonly otherHosts?: unknown } | undefined)?.otherHosts === true

const absolute = /^https?:\/\//i

/**
 * From here on the listener of a scope hands requests in absolute form (`GET http://example.com/ HTTP/1.1`), which clients send to a
 * proxy, to the route of this path, with what was asked for as `originalUrl`. The router would take them for requests to the
 * listener itself, and answer `http://example.com/healthz` from a route of its own.
 */
export const takeProxied = (app: App, path: string): void => {
  app.server.prependListener('request', (request: IncomingMessage & { originalUrl?: string }) => {
    if (!absolute.test(request.url ?? '')) return
    request.originalUrl = request.url!
    request.url = path
  })
}
