import { callbackify } from 'node:util'
import rateLimit, { type FastifyRateLimitStore } from '@fastify/rate-limit'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { App } from '#kernel'
import type { HitScope, Kv } from '#contracts/kv'
import type { Caller } from './authenticate.ts'
import { rateLimited } from './errors.ts'

const windowSeconds = 60

/**
 * The limit of each key, as a hook for routes behind `authenticate`. @fastify/rate-limit calls the counter through its
 * store interface and works out what is left; its own hook is not used, because it runs before there is a key.
 */
export async function createKeyLimit(
  app: App,
  callerOf: (request: FastifyRequest) => Caller,
  kv: Kv,
  /** Who counts together. */
  scope: HitScope,
): Promise<(request: FastifyRequest, reply: FastifyReply) => Promise<void>> {
  const count = callbackify(async (key: string, windowMs: number, max: number) => {
    const hit = await kv.hit(key, max, windowMs / 1_000, scope)
    // A refused hit is not counted, so the plugin is told of one over the limit.
    return hit.allowed ? { current: hit.count, ttl: windowMs } : { current: max + 1, ttl: hit.retryAfterMs }
  })
  class HitStore {
    incr(...[key, done, windowMs, max]: Parameters<FastifyRateLimitStore['incr']>): void {
      count(key, windowMs, max, done)
    }
    child(): HitStore {
      return this
    }
  }
  await app.register(rateLimit, { global: false, store: HitStore })
  const check = app.createRateLimit({
    timeWindow: windowSeconds * 1_000,
    // The purpose is part of the key: several limiters may share one store.
    keyGenerator: (request) => {
      const { tenantId, keyId } = callerOf(request)
      return `ao:chat-key:${tenantId}:${keyId}`
    },
    max: (request) => callerOf(request).agent.rateLimitRpm,
  })
  return async (request, reply) => {
    const result = await check(request)
    // The plugin's name for an allow-listed key; there is no such list here.
    if (result.isAllowed) return
    const { max, remaining, ttlInSeconds, isExceeded } = result
    void reply
      .header('ratelimit-policy', `"key";q=${max};w=${windowSeconds}`)
      .header('ratelimit', `"key";r=${isExceeded ? 0 : remaining};t=${ttlInSeconds}`)
    if (isExceeded)
      throw rateLimited({ headers: { 'retry-after': String(Math.max(1, ttlInSeconds)) }, retryable: true })
  }
}
