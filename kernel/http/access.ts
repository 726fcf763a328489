import type { FastifyContextConfig } from 'fastify'

/** Says who may call a route, e.g. `app.get('/x', { ...access('member'), schema }, handler)`. A route without it fails the boot. */
export const access = (who: string): { config: FastifyContextConfig } => ({
  config: { access: who } as FastifyContextConfig,
})

/** What a route declared with `access`. */
export const accessOf = (config: unknown): string | undefined => {
  const who = (config as { access?: unknown } | undefined)?.access
  return typeof who === 'string' ? who : undefined
}
