import type { FastifyContextConfig } from 'fastify'
import fp from 'fastify-plugin'
import type { App } from './app.ts'

interface RouteOptions {
  /** The route limits the arrival time of its body itself: the listener's limit ends when the handler begins. */
  readonly upload?: true
  /** The answer may stay open while there is something to send, and counts as one of the tenant's streams. */
  readonly stream?: true
}
export interface RouteConfig extends RouteOptions {
  readonly access?: unknown
  readonly ownOrigins?: unknown
}

/** Says who may call a route, e.g. `app.get('/x', { ...access('member'), schema }, handler)`. A route without it fails the boot. */
export const access = (who: string, options: RouteOptions = {}): { config: FastifyContextConfig } => ({
  config: { access: who, ...options } as FastifyContextConfig,
})

/** The access that a route declared; undefined when it declared none. */
export const accessOf = (config: unknown): string | undefined => {
  const who = (config as RouteConfig | undefined)?.access
  return typeof who === 'string' ? who : undefined
}

/** The routes of this scope decide themselves which web pages may call them, instead of the listener's `origins`. */
export const judgeOrigins = (app: App): unknown =>
  app.addHook(
    'onRoute',
    (route) => void (route.config = { ...route.config!, ownOrigins: true } as FastifyContextConfig),
  )

export const judgesOrigins = (config: unknown): boolean => (config as RouteConfig | undefined)?.ownOrigins === true
export const isUpload = (config: unknown): boolean => (config as RouteConfig | undefined)?.upload === true
export const isStream = (config: unknown): boolean => (config as RouteConfig | undefined)?.stream === true

/** Refuses a route that does not say who may call it. */
export const declaredAccess = fp(
  async (app) => {
    app.addHook('onRoute', ({ method, url, config }) => {
      // Fastify adds a HEAD route for each GET route.
      if ([method].flat().every((one) => one === 'HEAD') || accessOf(config) !== undefined) return
      throw new Error(`route ${String(method)} ${url} does not say who may call it; add access('...')`)
    })
  },
  { name: 'agent-orc-access' },
)
