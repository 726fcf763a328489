import { Counter, type Registry } from 'prom-client'

export type ConnectionMetrics = ReturnType<typeof createConnectionMetrics>

export const createConnectionMetrics = (metrics: Registry) => ({
  renewals: new Counter({
    name: 'app_connection_renewals_total',
    help: 'Accounts in apps that were due to be renewed, by what became of it.',
    labelNames: ['outcome'],
    registers: [metrics],
  }),
  revocations: new Counter({
    name: 'app_connection_revocations_total',
    help: 'Accounts in apps that were taken back at their app, by what became of it.',
    labelNames: ['outcome'],
    registers: [metrics],
  }),
  changes: new Counter({
    name: 'app_connection_changes_total',
    help: 'Accounts in apps that came into a state, by their provider.',
    labelNames: ['provider', 'state'],
    registers: [metrics],
  }),
})
