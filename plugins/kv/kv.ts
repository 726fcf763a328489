import type { Kv } from '#contracts/kv'
import type { Channels } from './channels.ts'
import { type Failover, standIn } from './failover.ts'
import type { Notifications } from './notifications.ts'
import type { RedisStore } from './redis.ts'
import type { Store } from './store.ts'

export interface KvParts {
  readonly channels: Channels
  readonly memory: Store
  readonly postgres?: Store | undefined
  readonly notifications?: Notifications | undefined
  readonly redis?: { readonly store: RedisStore; readonly failover: Failover } | undefined
}

export function createKv(parts: KvParts): Kv {
  const { memory, postgres, redis } = parts
  const counted = redis ? standIn(redis.failover, redis.store, postgres) : (postgres ?? memory)
  return {
    backend: redis ? 'redis' : postgres ? 'postgres' : 'memory',
    // In one store, always: processes lose Redis at different moments, and what one of them has claimed there the others
    // could not know.
    claim: (postgres ?? counted).claim,
    hit: (key, limit, windowSeconds, scope = 'shared') =>
      (scope === 'process' ? memory : counted).hit(key, limit, windowSeconds),
    ...createWakeUps(parts),
  }
}

/** Over Redis while it is up, which delivers a process its own ones too; otherwise here at once, and elsewhere over PostgreSQL. */
function createWakeUps({ channels, redis, notifications }: KvParts): Pick<Kv, 'publish' | 'subscribe'> {
  const here = (channel: string, message: string): void => {
    // Later, as with Redis: a publisher never finds its own listeners running inside its call.
    if (channels.has(channel)) setImmediate(() => channels.deliver(channel, message))
  }
  return {
    publish(channel, message) {
      // Also beside a healthy Redis: another process may have lost it.
      notifications?.publish(channel, message)
      if (!redis?.failover.up) return here(channel, message)
      redis.store.publish(channel, message).catch((cause: unknown) => {
        redis.failover.lost(cause)
        here(channel, message)
        notifications?.publish(channel, message)
      })
    },
    subscribe(channel, listener) {
      const remove = channels.add(channel, listener)
      redis?.store.watch(channel)
      notifications?.subscribed()
      return () => {
        if (remove()) redis?.store.unwatch(channel)
      }
    },
  }
}
