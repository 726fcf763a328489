import { Counter, Gauge, type Registry } from 'prom-client'

/** Returns what to call with the name of each command that Redis did not answer. */
export function createMetrics(registry: Registry, redisUp: () => boolean): (command: string) => void {
  new Gauge({
    name: 'agent_orc_kv_redis_up',
    help: '1 while Redis is used, 0 while PostgreSQL stands in for it.',
    registers: [registry],
    collect() {
      this.set(redisUp() ? 1 : 0)
    },
  })
  const fallbacks = new Counter({
    name: 'agent_orc_kv_fallback_total',
    help: 'Commands that were not answered by Redis although there is one, by command.',
    labelNames: ['command'],
    registers: [registry],
  })
  return (command) => fallbacks.inc({ command })
}
