import type { IncomingMessage } from 'node:http'
import type { App } from '../http/app.ts'

const absolute = /^https?:\/\//i

type Proxied = IncomingMessage & { originalUrl?: string }

/** The request came to a proxy: it is for another host, under whose name it comes. */
export const isProxied = (request: IncomingMessage): boolean => (request as Proxied).originalUrl !== undefined

/**
 * From here on the listener of a scope hands requests in absolute form (`GET http://example.com/ HTTP/1.1`), which clients send to a
 * proxy, to the route of this path, with what was asked for as `originalUrl`. The router would take them for requests to the
 * listener itself, and answer `http://example.com/healthz` from a route of its own.
 */
export const takeProxied = (app: App, path: string): void => {
  app.server.prependListener('request', (request: Proxied) => {
    if (!absolute.test(request.url ?? '')) return
    request.originalUrl = request.url!
    request.url = path
  })
}
