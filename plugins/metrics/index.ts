import { collectDefaultMetrics } from 'prom-client'
import { access, definePlugin } from '#kernel'

/** `/metrics` of this role in the Prometheus text format, with the process's own figures. */
export default definePlugin({
  name: 'metrics',
  async setup({ listeners, metrics, routes, onStop }) {
    collectDefaultMetrics({ register: metrics })
    onStop(async () => metrics.clear())
    for (const listener of listeners) {
      routes(listener, async (app) => {
        const schema = { tags: ['health'], summary: 'Metrics in the Prometheus text format.', produces: ['text/plain'] }
        app.get('/metrics', { ...access('public'), schema }, async (_request, reply) =>
          reply.type(metrics.contentType).send(await metrics.metrics()),
        )
      })
    }
    return {}
  },
})
