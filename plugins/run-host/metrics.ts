import { Counter, Gauge, type Registry } from 'prom-client'

export type RunOutcome = 'ok' | 'error' | 'cancelled'

export interface RunMetrics {
  started(): void
  ended(runtime: string, outcome: RunOutcome): void
}

export function createMetrics(registry: Registry): RunMetrics {
  const total = new Counter({
    name: 'sidecar_runs_total',
    help: 'Runs that ended, by runtime and outcome.',
    labelNames: ['runtime', 'status'] as const,
    registers: [registry],
  })
  const inflight = new Gauge({
    name: 'sidecar_runs_inflight',
    help: 'Runs under way.',
    registers: [registry],
  })
  return {
    started: () => inflight.inc(),
    ended(runtime, status) {
      inflight.dec()
      total.inc({ runtime, status })
    },
  }
}
