import { Counter, type Registry } from 'prom-client'

export type ConnectionMetrics = ReturnType<typeof createConnectionMetrics>

export const createConnectionMetrics = (metrics: Registry) => ({
  renewals: new Counter({
    name: 'app_connection_renewals_total',
    help: 'Renewals of accounts in apps, by outcome.',
    labelNames: ['outcome'],
    registers: [metrics],
  }),
  revocations: new Counter({
    name: 'app_connection_revocations_total',
    help: 'Revocations of accounts at their app, by outcome.',
    labelNames: ['outcome'],
    registers: [metrics],
  }),
  changes: new Counter({
    name: 'app_connection_changes_total',
    help: 'Changes of the state of accounts in apps, by provider and new state.',
    labelNames: ['provider', 'state'],
    registers: [metrics],
  }),
})
