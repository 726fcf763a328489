import { collectDefaultMetrics } from 'prom-client'
import { Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { ReadinessChecks } from '#contracts/health'
import { recordEventLoopDelay } from './event-loop.ts'
import { createReadiness } from './readiness.ts'
import { healthErrors, livenessRoutes, metricsRoutes, readinessRoutes } from './routes.ts'

const listenerNames = (names: readonly string[], description: string) =>
  Type.Array(Type.String(), { default: [...names], description })

/**
 * The endpoints for whoever operates a process. `/healthz` says that it lives and touches nothing, `/readyz` asks every part that
 * added a readiness check, `/metrics` shows its figures in the Prometheus text format.
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
    const stopRecording = recordEventLoopDelay(metrics)
    onStop(async () => {
      stopRecording()
      metrics.clear()
    })
    const readiness = createReadiness(deps.checks, stopping, log)
    for (const listener of listeners) {
      if (!config.withoutHealthz.includes(listener)) routes(listener, livenessRoutes)
      routes(listener, readinessRoutes(readiness, risks))
      if (!config.withoutMetrics.includes(listener)) routes(listener, metricsRoutes(metrics))
    }
    return {}
  },
})
