import { collectDefaultMetrics } from 'prom-client'
import { Type } from '@sinclair/typebox'
import { definePlugin, operationsListener, Settings } from '#kernel'
import { ReadinessChecks } from '#contracts/health'
import { recordEventLoop } from './event-loop.ts'
import { createReadiness } from './readiness.ts'
import { healthErrors, livenessRoutes, metricsRoutes, readinessRoutes } from './routes.ts'

const listenerNames = (names: readonly string[], description: string) =>
  Type.Array(Type.String(), { default: [...names], description })

/**
 * The endpoints for whoever operates a process. `/healthz` says that it lives and touches nothing, `/readyz` asks every part that
 * added a readiness check, `/metrics` shows its figures in the Prometheus text format: on the listener
 * `operations` alone, where the role has that.
 */
export default definePlugin({
  name: 'health',
  config: Settings({
    withoutHealthz: listenerNames(
      ['sidecar'],
      'Listeners that answer /healthz themselves: the sidecar has a body of its own there.',
    ),
    withoutMetrics: listenerNames(
      ['workers'],
      'Listeners without /metrics: code in a sandbox learns nothing of the process that it calls.',
    ),
  }),
  errors: healthErrors,
  requires: { checks: ReadinessChecks },
  async setup({ config, deps, listeners, log, metrics, risks, routes, stopping, onStop }) {
    collectDefaultMetrics({ register: metrics })
    const stopRecording = recordEventLoop(metrics)
    onStop(async () => {
      stopRecording()
      metrics.clear()
    })
    const readiness = createReadiness(deps.checks, stopping, log)
    const own = listeners.filter((listener) => listener === operationsListener)
    const shown = own.length > 0 ? own : listeners.filter((listener) => !config.withoutMetrics.includes(listener))
    for (const listener of listeners) {
      if (!config.withoutHealthz.includes(listener)) routes(listener, livenessRoutes)
      routes(listener, readinessRoutes(readiness, risks))
      if (shown.includes(listener)) routes(listener, metricsRoutes(metrics))
    }
    return {}
  },
})
