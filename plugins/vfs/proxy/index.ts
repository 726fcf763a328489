import type { FastifyRequest } from 'fastify'
import { Type } from '@sinclair/typebox'
import { Counter } from 'prom-client'
import { definePlugin, maybe, onceClosed, Settings } from '#kernel'
import { ApiGuard } from '#contracts/auth'
import { limitErrors, TenantLimits } from '#contracts/limits'
import { TenantData } from '#contracts/retention'
import { Signers } from '#contracts/signing'
import { type VfsClient, vfsErrors, type VfsUsage } from '#contracts/vfs'
import { followTls, hasKey, PeerTls, SingleFlight } from '#kit'
import { createVfsClient, ownUrl } from '../client.ts'
import { Shares } from '../shares.ts'
import { forward, proxyRoutes, turnsOf, Upstream } from './routes.ts'

/**
 * Access to the VirtualFS server with API keys. The conductor forwards `/api/vfs/*` without `/api`, signed for the tenant of the key, and without
 * the client's credentials. Specification 4.18.
 */
export default definePlugin({
  name: 'vfs-proxy',
  config: Settings({
    baseUrl: Type.Optional(
      Type.String({
        pattern: '^https?://[^\\s]+$',
        description:
          'VFS_BASE_URL: the URL of the VirtualFS server; by default that of this process. With neither there are no routes.',
      }),
    ),
    requestsAtOnce: Type.Integer({
      minimum: 1,
      default: 64,
      description: 'Concurrent requests of one tenant; further ones are refused for now.',
    }),
    tls: PeerTls,
  }),
  risks: ({ baseUrl }, role) =>
    baseUrl !== undefined && !hasKey(role, 'vfs')
      ? [
          'requests to the VirtualFS server are not signed, so it cannot tell tenants apart; set VFS_INTERNAL_SIGNING_KEY_CURRENT',
        ]
      : [],
  errors: [vfsErrors, limitErrors],
  requires: { guard: ApiGuard, signers: Signers, limits: maybe(TenantLimits) },
  provides: { data: TenantData },
  async setup({ config, deps, listeners, log, metrics, routes, urlOf, onStop }) {
    const { guard, limits } = deps
    const { baseUrl } = config
    const signer = deps.signers.get('vfs')
    // A VirtualFS server in this process can be used only if requests can be signed with a key.
    if (baseUrl === undefined && !(listeners.includes('vfs') && signer)) return { data: {} }
    const upstream = new Upstream(followTls(config.tls, log))
    onStop(() => upstream.close())
    // A VirtualFS server in this process has the keys of this process.
    const client =
      baseUrl !== undefined && signer
        ? createVfsClient({ baseUrl, signer, tls: followTls(config.tls, log) })
        : undefined
    onStop(async () => client?.dispose())
    const shares = new Shares(config.requestsAtOnce)
    const counter = new Counter({
      name: 'vfs_proxy_requests_total',
      help: 'Requests that were passed on to the VirtualFS server, by response status.',
      labelNames: ['method', 'status'],
      registers: [metrics],
    })
    routes('conductor', async (app) => {
      guard.protect(app)
      // Loaded where there is a VirtualFS server: it brings an HTTP client of its own, which takes as long to load as ours.
      const { default: replyFrom } = await import('@fastify/reply-from')
      await app.register(replyFrom, { undici: upstream as never, disableCache: true, disableRequestLogging: true })
      const paced = (request: FastifyRequest, body: AsyncIterable<Uint8Array>): AsyncIterable<Uint8Array> =>
        limits ? limits.paced(guard.callerOf(request).tenantId, body) : body
      proxyRoutes(app, paced, async (request, reply, target) => {
        const { tenantId } = guard.callerOf(request)
        const turns = turnsOf(target)
        if (turns > 0) await limits?.turn(tenantId, 'readsPerMinute', turns)
        onceClosed(reply.raw, shares.take(tenantId))
        reply.raw.once('finish', () => counter.inc({ method: request.method, status: reply.statusCode }))
        const key = await client?.knownKey(tenantId)
        return forward(request, reply, {
          base: new URL(baseUrl ?? ownUrl(urlOf)),
          target,
          tenantId,
          signer,
          key,
          paced,
        })
      })
    })
    // A VirtualFS server in this process reports usage and erases data by itself.
    if (!client || listeners.includes('vfs')) return { data: {} }
    if (limits) tellUsage(limits, client)
    return {
      data: {
        vfs: {
          erase: (tenantId, signal) => client.erase(tenantId, { signal }),
          hold: (tenantId, held, signal) => client.hold(tenantId, held, { signal }),
        },
      },
    }
  },
})

/** Timeout in milliseconds for a tenant's usage. After it, these limits are reported without usage. */
const usageMs = 1_500

/** Reports a tenant's usage of the VirtualFS server to the limits. Concurrent callers share one request. */
function tellUsage(limits: TenantLimits, client: Pick<VfsClient, 'usage'>): void {
  const asking = new SingleFlight<VfsUsage | undefined>()
  const ask = (tenantId: string) =>
    asking.run(tenantId, () => client.usage(tenantId, { signal: AbortSignal.timeout(usageMs) }).catch(() => undefined))
  limits.uses('vfsBytes', async (tenantId) => (await ask(tenantId))?.bytes)
  limits.uses('vfsEntries', async (tenantId) => (await ask(tenantId))?.entries)
  limits.uses('vfsSessions', async (tenantId) => (await ask(tenantId))?.sessions)
}
