import { Counter, type Registry } from 'prom-client'

export type AppMetrics = ReturnType<typeof createAppMetrics>

export const createAppMetrics = (metrics: Registry) => ({
  calls: new Counter({
    name: 'app_calls_total',
    help: 'Calls of tools of apps, by the provider of their toolkit and what became of them.',
    labelNames: ['provider', 'outcome'],
    registers: [metrics],
  }),
  links: new Counter({
    name: 'app_connects_total',
    help: 'Links that were given to owners of accounts, and those who came back, by what became of it.',
    labelNames: ['outcome'],
    registers: [metrics],
  }),
})
