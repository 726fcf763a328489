import { Counter, type Registry } from 'prom-client'

export type AppMetrics = ReturnType<typeof createAppMetrics>

export const createAppMetrics = (metrics: Registry) => ({
  calls: new Counter({
    name: 'app_calls_total',
    help: 'Calls of tools of apps, by the provider of their toolkit and outcome.',
    labelNames: ['provider', 'outcome'],
    registers: [metrics],
  }),
  links: new Counter({
    name: 'app_connects_total',
    help: 'Links for connecting an account, and returns of their owners, by outcome.',
    labelNames: ['outcome'],
    registers: [metrics],
  }),
})
