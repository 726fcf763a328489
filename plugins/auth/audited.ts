import type { FastifyRequest, RouteOptions } from 'fastify'
import { accessOf, type App } from '#kernel'
import { type AuditEntry, type AuditTrail, declaredAction } from '#contracts/audit'
import type { Caller } from '#contracts/auth'

/** True for an administrative request: a write that members may not do, or a route that names its own audit action. */
const isAudited = (method: string, config: unknown): boolean =>
  !['GET', 'HEAD', 'OPTIONS'].includes(method) &&
  (accessOf(config) !== 'member' || declaredAction(config) !== undefined)

const verbs: Readonly<Record<string, string>> = { PUT: 'update', PATCH: 'update', DELETE: 'delete' }

/**
 * `POST /api/profiles` is `profiles.create`, `DELETE /api/profiles/:name/keys/:keyId` is `profiles.keys.delete`. A plural is a
 * collection; anything else that is posted to is the verb itself: `profiles.publish`.
 */
export function actionOf(method: string, url: string): string {
  const words = url.split('/').filter((word) => word !== '' && word !== 'api' && !/^[:*]/.test(word))
  const verb = method !== 'POST' ? verbs[method] : words.at(-1)?.endsWith('s') ? 'create' : undefined
  return (verb === undefined ? words : [...words, verb]).join('.')
}

/** Puts the administrative writes of one scope on record: before they are handled, and how they ended. */
export function auditScope(app: App, trail: AuditTrail) {
  const open = new WeakMap<FastifyRequest, AuditEntry>()
  const created = new WeakMap<FastifyRequest, string>()
  // `/api/profiles/:name` says that what is created in `/api/profiles` is known by its `name`.
  const keys = new Map<string, string>()

  const outcome = async (request: FastifyRequest, reply: { readonly statusCode: number }): Promise<void> => {
    const entry = open.get(request)
    if (!entry) return
    open.delete(request)
    const target = created.get(request)
    await trail.end(entry, { status: reply.statusCode, ...(target === undefined ? {} : { target }) })
  }
  app.addHook('onRoute', (route: RouteOptions) => {
    const item = /^(.+)\/:(\w+)$/.exec(route.url)
    if (item) keys.set(item[1]!, item[2]!)
    // Only audited routes get the hooks, so the frequent requests of members cost nothing more.
    if (![route.method].flat().some((method) => isAudited(method, route.config))) return
    route.preSerialization = hooks(route.preSerialization, async (request: FastifyRequest, reply, payload: unknown) => {
      const id = reply.statusCode === 201 ? idOf(payload, keys.get(route.url)) : undefined
      if (id !== undefined) created.set(request, [targetOf(request), id].filter(Boolean).join('/'))
      return payload
    })
    // The end is recorded before the answer leaves, so that a client that has its answer also finds the entry.
    route.onSend = hooks(route.onSend, async (request: FastifyRequest, reply, payload: unknown) => {
      await outcome(request, reply)
      return payload
    })
  })
  return {
    /** Rejects when the write cannot be put on record: then nobody may do it. */
    async begin(request: FastifyRequest, caller: Caller): Promise<void> {
      const { method, ip, id } = request
      const { url, config } = request.routeOptions
      if (url === undefined || !isAudited(method, config)) return
      const target = targetOf(request)
      const entry = await trail.begin({
        tenantId: caller.tenantId,
        actor: { keyId: caller.keyId, role: caller.role },
        action: declaredAction(config) ?? actionOf(method, url),
        ...(target === '' ? {} : { target }),
        request: { method, path: request.url.split('?', 1)[0]!, id, remoteAddress: ip },
      })
      open.set(request, entry)
    },
  }
}

const hooks = <T>(before: T | T[] | undefined, own: T): T[] =>
  [...(before === undefined ? [] : [before].flat()), own] as T[]

const targetOf = ({ params }: FastifyRequest): string =>
  Object.values((params ?? {}) as Record<string, string>).join('/')

function idOf(payload: unknown, key: string | undefined): string | undefined {
  if (key === undefined) return undefined
  const fields = payload as Readonly<Record<string, unknown>> | null
  const id = fields?.[key] ?? fields?.['id']
  return typeof id === 'string' ? id : undefined
}
