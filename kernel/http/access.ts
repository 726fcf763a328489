import type { FastifyContextConfig } from 'fastify'
import fp from 'fastify-plugin'

interface RouteConfig {
  readonly access?: unknown
  readonly upload?: unknown
}

/** Says who may call a route, e.g. `app.get('/x', { ...access('member'), schema }, handler)`. A route without it fails the boot. */
export const access = (who: string): { config: FastifyContextConfig } => ({
  config: { access: who } as FastifyContextConfig,
})

/**
 * As `access`, for a route that bounds by itself how long its body may take to arrive: the listener's limit holds until the
 * request was let in, and ends when its handler begins.
 */
export const uploadAccess = (who: string): { config: FastifyContextConfig } => ({
  config: { ...access(who).config, upload: true } as FastifyContextConfig,
})

/** The access that a route declared; undefined when it declared none. */
export const accessOf = (config: unknown): string | undefined => {
  const who = (config as RouteConfig | undefined)?.access
  return typeof who === 'string' ? who : undefined
}

export const isUpload = (config: unknown): boolean => (config as RouteConfig | undefined)?.upload === true

/** Refuses a route that does not say who may call it. */
export const declaredAccess = fp(
  async (app) => {
    app.addHook('onRoute', ({ method, url, config }) => {
      // Fastify adds a HEAD route for each GET.
      if ([method].flat().every((one) => one === 'HEAD') || accessOf(config) !== undefined) return
      throw new Error(`route ${String(method)} ${url} does not say who may call it; add access('...')`)
    })
  },
  { name: 'agent-orc-access' },
)
