import { Counter, Histogram, type Registry } from 'prom-client'
import type { NodeType } from './node.schema.ts'
import type { RunStatus } from './schema.ts'
import type { Outcome } from './outcome.ts'

export interface WorkflowMetrics {
  moved(status: RunStatus): void
  attempted(type: NodeType, outcome: Outcome, ms: number): void
  fired(outcome: string): void
}

export function createWorkflowMetrics(registry: Registry): WorkflowMetrics {
  const attempts = new Counter({
    name: 'workflow_attempts_total',
    help: 'Attempts at nodes of workflows, by type and outcome; `parked` attempts wait for an event.',
    labelNames: ['type', 'outcome'],
    registers: [registry],
  })
  const seconds = new Histogram({
    name: 'workflow_attempt_seconds',
    help: 'Duration of attempts at nodes in this process.',
    labelNames: ['type'],
    buckets: [0.005, 0.02, 0.1, 0.5, 2, 10, 60, 600],
    registers: [registry],
  })
  const transitions = new Counter({
    name: 'workflow_run_transitions_total',
    help: 'Transitions of workflow runs by this process, by new status.',
    labelNames: ['status'],
    registers: [registry],
  })
  const firings = new Counter({
    name: 'workflow_schedule_firings_total',
    help: 'Due times of schedules that this process handled, by outcome.',
    labelNames: ['outcome'],
    registers: [registry],
  })
  return {
    moved: (status) => transitions.inc({ status }),
    attempted(type, outcome, ms) {
      attempts.inc({ type, outcome: outcome.kind === 'over' ? outcome.status : outcome.kind })
      seconds.observe({ type }, ms / 1_000)
    },
    fired: (outcome) => firings.inc({ outcome }),
  }
}
