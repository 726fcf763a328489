import type { IncomingMessage } from 'node:http'
import type { App } from '../http/app.ts'

const absolute = /^https?:\/\//i

type Proxied = IncomingMessage & { originalUrl?: string }

/** True for a request to a proxy: it names another host as its target. */
export const isProxied = (request: IncomingMessage): boolean => (request as Proxied).originalUrl !== undefined

/**
 * Makes the listener of a scope route requests in absolute form (`GET http://example.com/ HTTP/1.1`), which clients send to a proxy, to the route
 * of this path, with the requested target as `originalUrl`. The router would otherwise treat them as requests to the listener itself, and answer
 * `http://example.com/healthz` from its own route.
 */
export const takeProxied = (app: App, path: string): void => {
  app.server.prependListener('request', (request: Proxied) => {
    if (!absolute.test(request.url ?? '')) return
    request.originalUrl = request.url!
    request.url = path
  })
}
