import { Type } from '@sinclair/typebox'
import type { FastifyReply } from 'fastify'
import { access, type App } from '#kernel'
import type { Guard } from '#contracts/auth'
import type { Kv } from '#contracts/kv'
import { entryOf } from './entry.ts'
import { rateLimited } from './errors.ts'
import type { Sight } from './observe.ts'
import { TopologyEntry } from './schema.ts'

const windowSeconds = 60

export interface TopologyRoutes {
  readonly guard: Guard
  readonly kv: Pick<Kv, 'hit'>
  readonly requestsPerMinute: number
  readonly observe: () => Promise<Sight[]>
}

export function topologyRoutes(app: App, { guard, kv, requestsPerMinute, observe }: TopologyRoutes): void {
  /** Each reading may probe the whole fleet, so a tenant has few of them. */
  const limit = async (tenantId: string, reply: FastifyReply): Promise<void> => {
    // The purpose is part of the key: other limits count in the same store.
    const hit = await kv.hit(`ao:topology:${tenantId}`, requestsPerMinute, windowSeconds)
    const left = hit.allowed ? requestsPerMinute - hit.count : 0
    const seconds = hit.allowed ? windowSeconds : Math.max(1, Math.ceil(hit.retryAfterMs / 1_000))
    void reply
      .header('ratelimit-policy', `"topology";q=${requestsPerMinute};w=${windowSeconds}`)
      .header('ratelimit', `"topology";r=${left};t=${seconds}`)
    if (!hit.allowed) throw rateLimited({ headers: { 'retry-after': String(seconds) }, retryable: true })
  }

  app.get(
    '/api/topology',
    {
      ...access('member'),
      schema: {
        tags: ['topology'],
        summary: 'Show the runners',
        description:
          'In registry order, as this conductor sees them. Null means not measured, never zero. Counts are of whole processes, ' +
          'across tenants. 429 `rate_limited` beyond the readings per minute of a tenant.',
        response: { 200: Type.Array(TopologyEntry) },
      },
    },
    async (request, reply) => {
      await limit(guard.callerOf(request).tenantId, reply)
      return (await observe()).map(entryOf)
    },
  )
}
