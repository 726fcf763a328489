import { Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { ReadinessChecks } from '#contracts/health'
import { createReadiness } from './readiness.ts'
import { livenessRoutes, readinessRoutes } from './routes.ts'

/** `/healthz` says that the process lives and touches nothing; `/readyz` asks every part that added a readiness check. */
export default definePlugin({
  name: 'health',
  config: Settings({
    skip: Type.Array(Type.String(), {
      default: ['sidecar'],
      description: 'Listeners that answer /healthz themselves: the sidecar has a body of its own there.',
    }),
  }),
  requires: { checks: ReadinessChecks },
  async setup({ config, deps, listeners, log, routes, stopping }) {
    const readiness = createReadiness(deps.checks, stopping, log)
    for (const listener of listeners) {
      if (!config.skip.includes(listener)) routes(listener, livenessRoutes)
      routes(listener, readinessRoutes(readiness))
    }
    return {}
  },
})
