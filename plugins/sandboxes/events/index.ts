import { Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { Kv } from '#contracts/kv'
import { Fleet } from '#contracts/runner'
import { SandboxEventDecoders } from '#contracts/sandbox'
import { createClientAddress, trustedProxies } from '#kit'
import { createFanOut } from './fan-out.ts'
import { createEventMetrics, sandboxEventRoutes } from './routes.ts'
import { sandboxEventErrors } from './errors.ts'

/** Passes what sandbox providers say of their sandboxes on to the runners. Specification 4.9. */
export default definePlugin({
  name: 'sandbox-events',
  config: Settings({
    requestsPerMinute: Type.Integer({
      default: 600,
      minimum: 1,
      maximum: 100_000,
      description: 'Deliveries of one client address.',
    }),
    trustedProxies,
  }),
  errors: sandboxEventErrors,
  requires: { fleet: Fleet, kv: Kv, decoders: SandboxEventDecoders },
  async setup({ config, deps: { fleet, kv, decoders }, log, metrics: registry, routes }) {
    const { requestsPerMinute } = config
    const metrics = createEventMetrics(registry, () => fanOut.active)
    const fanOut = createFanOut({ fleet, log, onDropped: metrics.dropped })
    const clientOf = createClientAddress(config.trustedProxies)
    routes('conductor', async (app) => {
      await sandboxEventRoutes(app, { kv, decoders, fanOut, metrics, requestsPerMinute, clientOf })
    })
    return {}
  },
})
