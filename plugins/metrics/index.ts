import { collectDefaultMetrics } from 'prom-client'
import { access, definePlugin, plainText } from '#kernel'

/** `/metrics` of this role in the Prometheus text format, with the process's own figures. */
export default definePlugin({
  name: 'metrics',
  async setup({ listeners, metrics, routes, onStop }) {
    collectDefaultMetrics({ register: metrics })
    onStop(async () => metrics.clear())
    for (const listener of listeners) {
      routes(listener, async (app) => {
        const schema = {
          tags: ['health'],
          summary: 'Read the metrics of this process',
          description: 'In the Prometheus text format, version 0.0.4.',
          response: { 200: plainText('One line for each value.') },
        }
        app.get('/metrics', { ...access('public'), schema }, async (_request, reply) =>
          reply.type(metrics.contentType).send(await metrics.metrics()),
        )
      })
    }
    return {}
  },
})
