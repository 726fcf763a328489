import { Counter, Gauge, Histogram, type Registry } from 'prom-client'
import type { Started, WorkerTable } from './session-worker.ts'
import type { WarmPools } from './warm-pools.ts'
import type { CallCounts } from './egress/calls.ts'
import type { HostCounts } from './egress/host-routes.ts'

export interface Metrics extends CallCounts, HostCounts {
  started(start: Started): void
  failed(): void
}

export function createMetrics(registry: Registry, table: WorkerTable, pools: WarmPools): Metrics {
  const registers = [registry]
  const seconds = new Histogram({
    name: 'runner_sandbox_start_seconds',
    help: 'How long runs waited for their sandbox, by provider and kind of start.',
    labelNames: ['provider', 'start'],
    buckets: [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
    registers,
  })
  const failures = new Counter({
    name: 'runner_sandbox_start_failures_total',
    help: 'Runs that got no sandbox.',
    registers,
  })
  new Gauge({
    name: 'runner_sandboxes',
    help: 'Sandboxes of this runner: those of sessions by their last known state, and waiting warm ones.',
    labelNames: ['state'],
    registers,
    collect() {
      const phases = table.all().map(({ phase }) => phase)
      for (const state of ['starting', 'awake', 'paused'] as const) {
        this.set({ state }, phases.filter((phase) => phase === state).length)
      }
      this.set({ state: 'warm' }, pools.waiting)
    },
  })
  const calls = new Counter({
    name: 'runner_model_calls_total',
    help: 'Ended model calls of sandbox workers through this runner, by provider and source of their usage.',
    labelNames: ['provider', 'usage'],
    registers,
  })
  const tokens = new Counter({
    name: 'runner_model_tokens_total',
    help: 'Tokens of ended model calls of sandbox workers. Cached tokens are also counted as input.',
    labelNames: ['provider', 'kind'],
    registers,
  })
  const refusals = new Counter({
    name: 'runner_model_calls_refused_total',
    help: 'Model calls that were refused because the budget of the run was spent or too many were under way.',
    labelNames: ['provider', 'reason'],
    registers,
  })
  const requests = new Counter({
    name: 'runner_egress_requests_total',
    help: 'Requests of sandboxes to hosts, by kind of host and response status; requests to `unlisted` hosts were refused.',
    labelNames: ['place', 'status'],
    registers,
  })
  return {
    asked: (place, status) => requests.inc({ place, status: `${Math.floor(status / 100)}xx` }),
    measured(provider, { inputTokens, outputTokens, cachedTokens = 0, estimated }) {
      calls.inc({ provider, usage: estimated ? 'estimated' : 'told' })
      tokens.inc({ provider, kind: 'input' }, inputTokens)
      tokens.inc({ provider, kind: 'output' }, outputTokens)
      tokens.inc({ provider, kind: 'cached' }, cachedTokens)
    },
    refused: (provider, reason) => refusals.inc({ provider, reason }),
    started: ({ sandbox, start, startMs }) =>
      seconds.observe({ provider: sandbox.substrate.name, start }, startMs / 1_000),
    failed: () => failures.inc(),
  }
}
