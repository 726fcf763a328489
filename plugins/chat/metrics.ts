import { Counter, Gauge, Histogram, type Registry } from 'prom-client'
import type { App } from '#kernel'
import type { Outcome } from './public-run.ts'

/** The metrics of specification 6. */
export function createMetrics(registry: Registry, activeWatchers: () => number) {
  const registers = [registry]
  const requests = new Counter({
    name: 'chat_gateway_requests_total',
    help: 'Public chat requests by route and response status.',
    labelNames: ['route', 'status'],
    registers,
  })
  const duration = new Histogram({
    name: 'chat_gateway_request_duration_seconds',
    help: 'Time from request to the end of the response; of a stream, to its last frame.',
    labelNames: ['route'],
    buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120],
    registers,
  })
  const terminal = new Counter({
    name: 'chat_gateway_run_terminal_total',
    help: 'Public runs that ended, by how they were announced.',
    labelNames: ['status'],
    registers,
  })
  new Gauge({
    name: 'chat_gateway_watcher_active',
    help: 'Public runs that this process follows.',
    registers,
    collect() {
      this.set(activeWatchers())
    },
  })
  return {
    /** Counts and times every request of a scope, by route pattern. */
    observe(app: App): void {
      app.addHook('onResponse', (request, reply, done) => {
        const route = request.routeOptions.url ?? 'unknown'
        requests.inc({ route, status: reply.statusCode })
        duration.observe({ route }, reply.elapsedTime / 1_000)
        done()
      })
    },
    // A run that was lost is announced as an error.
    ended: ({ status }: Outcome): void => terminal.inc({ status: status === 'ok' ? 'done' : 'error' }),
  }
}
