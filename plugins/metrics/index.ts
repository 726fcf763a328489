import { collectDefaultMetrics } from 'prom-client'
import { Type } from '@sinclair/typebox'
import { access, definePlugin, plainText, Settings } from '#kernel'

/** `/metrics` of this role in the Prometheus text format, with the process's own figures. */
export default definePlugin({
  name: 'metrics',
  config: Settings({
    skip: Type.Array(Type.String(), {
      default: ['workers'],
      description: 'Listeners without it: code in a sandbox learns nothing of the process that it calls.',
    }),
  }),
  async setup({ config, listeners, metrics, routes, onStop }) {
    collectDefaultMetrics({ register: metrics })
    onStop(async () => metrics.clear())
    for (const listener of listeners) {
      if (config.skip.includes(listener)) continue
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
