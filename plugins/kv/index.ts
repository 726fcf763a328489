import { Type } from '@sinclair/typebox'
import { definePlugin, Settings } from '#kernel'
import { ReadinessChecks } from '#contracts/health'
import { Kv } from '#contracts/kv'
import { createMemoryKv } from './memory.ts'
import { addressProblem, connectRedis } from './redis.ts'

export default definePlugin({
  name: 'kv',
  config: Settings({
    url: Type.Optional(
      Type.String({
        description: 'Address of Redis. Absent: this process keeps the state, so it must be the only one.',
      }),
    ),
  }),
  provides: { kv: Kv, readiness: ReadinessChecks },
  async setup({ config, log, onStop }) {
    if (config.url === undefined) {
      const memory = createMemoryKv({ log })
      onStop(() => memory.close())
      return { kv: memory.kv, readiness: {} }
    }
    const problem = addressProblem(config.url)
    if (problem !== undefined) throw new Error(problem)
    const redis = await connectRedis(config.url, log)
    onStop(() => redis.close())
    return { kv: redis.kv, readiness: { kv: redis.check } }
  },
})
