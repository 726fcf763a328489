import { Counter, Gauge, type Registry } from 'prom-client'

export type Outcome = 'queued' | 'ignored' | 'refused' | 'shed' | 'limited'

export interface EventMetrics {
  count(outcome: Outcome): void
  dropped(states: number): void
}

export function createMetrics(registry: Registry, activeFanOuts: () => number): EventMetrics {
  const registers = [registry]
  const deliveries = new Counter({
    name: 'sandbox_events_total',
    help: 'Deliveries of sandbox providers, by what became of them.',
    labelNames: ['outcome'],
    registers,
  })
  const invalidated = new Counter({
    name: 'sandbox_event_invalidations_total',
    help: 'Cached states of sandboxes that runners dropped for such a delivery.',
    registers,
  })
  new Gauge({
    name: 'sandbox_event_fanouts_active',
    help: 'Deliveries that runners are being told of.',
    registers,
    collect() {
      this.set(activeFanOuts())
    },
  })
  return { count: (outcome) => deliveries.inc({ outcome }), dropped: (states) => invalidated.inc(states) }
}
