import type { FastifyReply, FastifyRequest } from 'fastify'
import fp from 'fastify-plugin'
import { type App, isUpload } from '#kernel'
import type { Hit, Kv } from '#contracts/kv'
import { type GuardedRequests, type LimitName, overLimit, requestLimitOf, type TenantLimits } from '#contracts/limits'
import { rateLimit } from '#kit'

/** Requests pass at this many times the average that their limit allows; faster ones wait for their turn. */
export const paceFactor = 6
/** A body takes a turn more for each part of this size, up to a bound: the largest pass at a quarter of the average that the limit allows. */
export const bytesOfTurn = 32 * 1_024
const mostTurns = 4 * paceFactor
/** Undefined: it does not say. */
const bytesOf = ({ headers }: FastifyRequest): number | undefined =>
  headers['transfer-encoding'] === undefined ? Number(headers['content-length'] ?? 0) : undefined
const turnsOf = (bytes: number | undefined): number =>
  bytes === undefined ? mostTurns : Math.min(mostTurns, 1 + Math.floor(bytes / bytesOfTurn))

/** Of each limit so much is counted by every process for itself, which most tenants never pass. The rest all count together. */
const ownPart = 0.1
export const ownOf = (max: number): number => Math.floor(max * ownPart)
/** By what a limit of a tenant is counted. */
export const countedAs = (tenantId: string, kind: string): string => `ao:tenant:${tenantId}:${kind}`

/** What a process knows of the requests of each tenant. */
interface Requests extends Pick<TenantLimits, 'of' | 'turn'> {
  turnOfBody(tenantId: string, bytes: number): Promise<void>
  hit(kv: Pick<Kv, 'hit'>, key: string, max: number, seconds: number): Promise<Hit>
  isUsedUp(tenantId: string, kind: LimitName): boolean
}

interface RequestLimitsOptions {
  readonly limits: Requests
  readonly kv: Pick<Kv, 'hit'>
  readonly guarded: GuardedRequests
}

/** Keeps the limits on the requests of a scope. With a second process a tenant has at most a tenth more requests. */
export function limitRequests(app: App, { limits, kv, guarded }: RequestLimitsOptions): void {
  const { tenantOf, writes, alone } = guarded
  const kindOf = ({ method }: FastifyRequest) => requestLimitOf(method, writes)
  let check: (request: FastifyRequest, reply: FastifyReply) => Promise<void>
  const loaded = fp(
    async (scope: App) => {
      check = await rateLimit(scope, {
        name: 'tenant',
        keyOf: (request) => countedAs(tenantOf(request), kindOf(request)),
        max: (request) => limits.of(tenantOf(request))[kindOf(request)],
        hit: (key, max, seconds) => (alone ? alone(key, max, seconds) : limits.hit(kv, key, max, seconds)),
        refused({ headers }, request) {
          const kind = kindOf(request)
          return overLimit(kind, limits.of(tenantOf(request))[kind], Number(headers?.['retry-after']))
        },
      })
    },
    { name: 'agent-orc-tenant-requests' },
  )
  void app.register(loaded)
  // At once, and not when the rest is loaded: hooks that are added behind the guard's are to run after it.
  app.addHook('onRequest', async (request, reply) => {
    const tenantId = tenantOf(request)
    // What is refused anyway takes nobody's turn.
    if (!limits.isUsedUp(tenantId, kindOf(request))) {
      const bytes = bytesOf(request)
      // An upload takes its turns while it flows. A body that does not say its length counts as the largest of JSON.
      if ((bytes === undefined || bytes > bytesOfTurn) && !isUpload(request.routeOptions.config))
        await limits.turnOfBody(tenantId, bytes ?? app.initialConfig.bodyLimit!)
      await limits.turn(tenantId, kindOf(request), turnsOf(bytes))
    }
    await check(request, reply)
  })
}
