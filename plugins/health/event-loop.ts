import { monitorEventLoopDelay } from 'node:perf_hooks'
import type { Histogram, Metric, Registry } from 'prom-client'

/** How often the event loop is looked at, in milliseconds; a shorter delay than this may be missed. */
const resolution = 10
const name = 'agent_orc_event_loop_delay_seconds'
// No step of a request may take longer than 50 ms: what is beyond is somebody's bug, and told apart by how bad it is.
const buckets = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]

type Delays = ReturnType<typeof monitorEventLoopDelay>

/**
 * Shows how long the event loop kept everybody waiting, since the process began. The figures of prom-client begin anew with each
 * scrape: of two scrapers each sees half, and a step that runs across a scrape is in neither. Returns how to stop.
 */
export function recordEventLoopDelay(metrics: Registry): () => void {
  const delays = monitorEventLoopDelay({ resolution })
  const about = {
    name,
    help: 'How late the event loop was when it was looked at, every 10 ms that it was free: a long step is one long delay.',
    type: 'histogram',
    aggregator: 'sum',
  }
  // A histogram of prom-client would have to be told of each delay; Node keeps them, and is asked when somebody reads.
  const histogram = { ...about, get: async () => ({ ...about, values: valuesOf(delays) }), reset: () => delays.reset() }
  metrics.registerMetric(histogram as unknown as Metric)
  delays.enable()
  return () => void delays.disable()
}

type Values = Pick<Awaited<ReturnType<Histogram['get']>>['values'][number], 'labels' | 'metricName' | 'value'>[]

function valuesOf(delays: Delays): Values {
  const { count, mean } = delays
  const bucket = (le: number | string, value: number) => ({ metricName: `${name}_bucket`, labels: { le }, value })
  let shorter = 0
  const counts = buckets.map((le) => bucket(le, (shorter = countUpTo(delays, le, shorter))))
  const sum = count === 0 ? 0 : Math.max(0, count * secondsLate(mean))
  return [
    ...counts,
    bucket('+Inf', count),
    { metricName: `${name}_sum`, labels: {}, value: sum },
    { metricName: `${name}_count`, labels: {}, value: count },
  ]
}

/** How many delays were at most so long: at least `low`. Node tells the delay at each place in their order. */
function countUpTo(delays: Delays, seconds: number, low: number): number {
  const { count } = delays
  let high = count
  while (low < high) {
    const middle = Math.ceil((low + high) / 2)
    if (secondsLate(delays.percentile((middle / count) * 100)) <= seconds) low = middle
    else high = middle - 1
  }
  return low
}

/** What is measured is the time between two looks, in nanoseconds. */
const secondsLate = (nanoseconds: number): number => nanoseconds / 1e9 - resolution / 1_000
