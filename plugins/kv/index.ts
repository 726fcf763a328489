import { Type } from '@sinclair/typebox'
import { Counter, Gauge, type Registry } from 'prom-client'
import { type App, definePlugin, maybe, Settings } from '#kernel'
import { Database, presentDatabase } from '#contracts/database'
import { ReadinessChecks } from '#contracts/health'
import { Kv } from '#contracts/kv'
import { createFailover, type Failover, type FailoverOptions } from './failover.ts'
import { createChannels, createKv, PostgresNotifications } from './kv.ts'
import { type Channels, createMemoryStore } from './store.ts'
import { PostgresStore } from './postgres.ts'
import type * as RedisDriver from './redis.ts'

/** Nonces, limits and wake-ups that processes share. ADR 31. */
export default definePlugin({
  name: 'kv',
  config: Settings({
    url: Type.Optional(
      Type.String({
        description:
          'Address of Redis, for limits and wake-ups; PostgreSQL takes its place while it cannot be reached.',
      }),
    ),
    withoutRedis: Type.Union([Type.Literal('database'), Type.Literal('memory')], {
      default: 'database',
      description:
        'The backend without a `url`. `database`: PostgreSQL, shared by all processes, where the role has one. ' +
        '`memory`: this process keeps the state, so it must be the only one.',
    }),
  }),
  requires: { database: maybe(Database) },
  provides: { kv: Kv, readiness: ReadinessChecks },
  async setup({ config: { url, withoutRedis }, deps, innermost, log, metrics, onStop }) {
    // The driver is loaded only where it is used: a role without Redis starts sooner.
    const driver = url === undefined ? undefined : await import('./redis.ts')
    const problem = driver?.addressProblem(url!)
    if (problem !== undefined) throw new Error(problem)
    const channels = createChannels(log)
    const memory = createMemoryStore()
    onStop(async () => memory.close())
    const database = url === undefined && withoutRedis === 'memory' ? undefined : presentDatabase(deps.database)
    const postgres = database && new PostgresStore({ database, log })
    if (postgres) onStop(() => postgres.close())

    // `onSwitch` is called later, when the variables below are set.
    const redis =
      driver &&
      openRedis(url!, {
        driver,
        channels,
        listener: innermost,
        log,
        metrics,
        replaced: postgres !== undefined,
        onSwitch: () => notifications?.switched(),
      })
    const up = (): boolean => redis?.failover.up ?? false
    const notifications = database && new PostgresNotifications({ database, channels, log, away: () => !up() })
    if (notifications) onStop(() => notifications.close())
    const kv = createKv({ channels, memory, postgres, notifications, redis })
    if (!redis) return { kv, readiness: {} }
    onStop(async () => {
      redis.failover.close()
      await redis.store.close()
    })
    await redis.store.opened
    return { kv, readiness: { kv: redis.failover.check } }
  },
})

interface RedisParts extends Pick<FailoverOptions, 'log' | 'replaced' | 'onSwitch'> {
  readonly driver: typeof RedisDriver
  readonly channels: Channels
  readonly listener: App | undefined
  readonly metrics: Registry
}

function openRedis(url: string, { driver, channels, listener, metrics, ...options }: RedisParts) {
  const onFallback = createMetrics(metrics, () => failover.up)
  const failover: Failover = createFailover({ ...options, onFallback, probe: () => store.probe() })
  const store = driver.createRedisStore(url, { channels, listener, onLost: failover.lost })
  return { store, failover }
}

/** Registers the metrics. The returned function counts a command that Redis did not answer. */
function createMetrics(registry: Registry, redisUp: () => boolean): (command: string) => void {
  new Gauge({
    name: 'agent_orc_kv_redis_up',
    help: '1 while Redis is used, 0 while PostgreSQL takes its place.',
    registers: [registry],
    collect() {
      this.set(redisUp() ? 1 : 0)
    },
  })
  const fallbacks = new Counter({
    name: 'agent_orc_kv_fallback_total',
    help: 'Commands that a configured Redis did not answer, by command.',
    labelNames: ['command'],
    registers: [registry],
  })
  return (command) => fallbacks.inc({ command })
}
