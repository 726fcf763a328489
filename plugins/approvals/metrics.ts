import { Counter, Histogram, type Registry } from 'prom-client'

export interface ApprovalMetrics {
  /** Counts an approval that begins to wait, of a tool call or of a node. */
  opened(kind: 'tool' | 'node'): void
  /** Counts a decision. `by`: `person` or `expiry`. */
  resolved(kind: 'tool' | 'node', decision: 'approved' | 'rejected', by: string, waitedSeconds: number): void
}

export function createApprovalMetrics(registry: Registry): ApprovalMetrics {
  const registers = [registry]
  const opened = new Counter({
    name: 'approvals_opened_total',
    help: 'Approvals that this process asked for, by kind.',
    labelNames: ['kind'],
    registers,
  })
  const resolved = new Counter({
    name: 'approvals_resolved_total',
    help: 'Approvals that this process settled, by kind, decision and who decided.',
    labelNames: ['kind', 'decision', 'by'],
    registers,
  })
  const waited = new Histogram({
    name: 'approval_wait_seconds',
    help: 'Time from asking for an approval to its decision.',
    labelNames: ['kind'],
    buckets: [1, 10, 60, 600, 3_600, 21_600, 86_400, 604_800],
    registers,
  })
  return {
    opened: (kind) => opened.inc({ kind }),
    resolved(kind, decision, by, waitedSeconds) {
      resolved.inc({ kind, decision, by })
      waited.observe({ kind }, waitedSeconds)
    },
  }
}
