import { Type } from '@sinclair/typebox'
import type { FastifyReply } from 'fastify'
import { access, type App, failures, invalidRequest, NoContent, notFound } from '#kernel'
import { appErrors } from '#contracts/apps'
import type { Guard } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { isId } from '#contracts/ids'
import { limitErrors } from '#contracts/limits'
import { webhookErrors } from '#contracts/webhooks'
import { type ListSql, readList, sendList } from '#kit/lists'
import type { Kv } from '#contracts/kv'
import { addressLimit, type ClientAddress } from '#kit'
import { columns, viewOf } from './connections/store.ts'
import type { Arrival, Connector } from './connect.ts'
import { tags } from './routes.ts'
import {
  CallbackQuery,
  ConnectAnswer,
  ConnectBody,
  ConnectionParams,
  ConnectionsQuery,
  ConnectionView,
  ToolkitParams,
} from './schema.ts'
import type { Toolkits } from './toolkits.ts'
import { callbackPath } from './connections/index.ts'

interface ConnectionServices {
  readonly database: Database
  readonly toolkits: Toolkits
  readonly connector: Connector
}

/** Routes that connect and revoke the accounts of a toolkit. */
export function connectRoutes(
  app: App,
  guard: Guard,
  { toolkits, connector }: Omit<ConnectionServices, 'database'>,
): void {
  app.post(
    '/api/apps/:toolkit/connect',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Connect an account to an app',
        description:
          'Answers a link that the owner of the account follows within ten minutes. A connected account continues to work until its owner has finished. `webhook` is told when the account works, and when it stops working.',
        params: ToolkitParams,
        body: ConnectBody,
        response: {
          200: ConnectAnswer,
          ...failures(
            invalidRequest,
            appErrors.connectRefused,
            webhookErrors.invalidWebhook,
            appErrors.toolkitNotActive,
            limitErrors.limitExceeded,
            appErrors.appUnavailable,
            appErrors.appsUnavailable,
            webhookErrors.webhooksUnavailable,
          ),
        },
      },
    },
    async (request, reply) => {
      const { endUserId, returnUrl, webhook } = request.body
      const caller = guard.callerOf(request)
      const toolkit = await toolkits.findFor(caller, request.params.toolkit)
      void reply.header('cache-control', 'no-store')
      return connector.begin(caller.tenantId, toolkit, { endUserId, returnUrl, webhookUrl: webhook?.url })
    },
  )
  app.delete(
    '/api/apps/:toolkit/connections/:id',
    {
      ...access('admin'),
      schema: {
        tags,
        summary: 'Revoke a connection',
        description:
          'The account is no longer used from now on, and is revoked at its authorization server if possible (RFC 7009). It stays in the list as `revoked`. May be repeated.',
        params: ConnectionParams,
        response: { 204: NoContent, ...failures(notFound) },
      },
    },
    async (request, reply) => {
      const { toolkit, id } = request.params
      if (!isId('conn', id)) throw notFound()
      await connector.revoke(guard.callerOf(request).tenantId, toolkit, id)
      return reply.code(204).send()
    },
  )
}

/** Routes that read the accounts of a toolkit. */
export function connectionRoutes(
  app: App,
  guard: Guard,
  { database, toolkits }: Omit<ConnectionServices, 'connector'>,
): void {
  app.get(
    '/api/apps/:toolkit/connections',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List the connections of an app',
        description:
          'Newest first; also those of a toolkit that is no longer active. 403 if there never was a toolkit of this name.',
        params: ToolkitParams,
        querystring: ConnectionsQuery,
        response: { 200: Type.Array(ConnectionView), ...failures(appErrors.toolkitNotActive) },
      },
    },
    async (request, reply) => {
      const { endUserId, state, ...page } = request.query
      const { tenantId } = guard.callerOf(request)
      const { toolkit } = request.params
      const list: ListSql = {
        columns,
        from: 'app_connections',
        where: `tenant_id = $1 AND toolkit = $2 AND ($3::text IS NULL OR end_user_id = $3) AND ($4::text IS NULL OR state = $4)`,
        values: [tenantId, nameOf(toolkit), endUserId ?? null, state ?? null],
        order: { created_at: 'timestamptz', id: 'text' },
        newestFirst: true,
        atOnce: 200,
      }
      const found = await readList({ database, tenantId }, list, page, viewOf)
      if (found.items.length === 0) await toolkits.find(tenantId, toolkit)
      return sendList(request, reply, found, { page, item: ConnectionView })
    },
  )
}

/** PostgreSQL cannot store NUL, so no connection has such a name. The empty name finds nothing. */
const nameOf = (text: string): string => (text.includes('\0') ? '' : text)

interface CallbackOptions {
  readonly connector: Pick<Connector, 'finish'>
  readonly kv: Pick<Kv, 'hit'>
  readonly clientOf: ClientAddress
  /** The most requests from one address in a minute. */
  readonly requestsPerMinute: number
}

/** Bounds on the parameters of an answer, far above what any authorization server has to send. */
const mostParameters = 20
const mostLength = 8_000

/**
 * The page to which owners of accounts come back. It is open to anybody, so each request must carry the state of one attempt, which nobody can guess
 * and which works once. The redirect goes only to the stored return URL, never to a URL from the request.
 */
export async function callbackRoutes(app: App, options: CallbackOptions): Promise<void> {
  const { connector, kv, clientOf, requestsPerMinute } = options
  const limit = await addressLimit(app, {
    name: 'apps-callback',
    kv,
    clientOf,
    max: requestsPerMinute,
    refused: (when) =>
      limitErrors.limitReached({ ...when, message: 'Too many come back from this address; try again in a minute.' }),
  })
  app.get(
    callbackPath,
    {
      ...access('public'),
      onRequest: limit,
      schema: {
        tags: ['apps'],
        summary: 'Return from connecting an account',
        description:
          'Authorization servers redirect browsers here (RFC 6749, RFC 9207). Answers a page, or redirects to the `returnUrl` of the connection. An attempt works once, within ten minutes. Clients that accept `text/html` get errors as a page, too.',
        querystring: CallbackQuery,
        produces: ['text/html'],
        response: {
          200: Type.String({ description: 'A page that says how it ended.' }),
          303: Type.Unsafe<undefined>({ type: 'null', description: 'Redirects to the `returnUrl`.' }),
          ...failures(appErrors.connectRefused, limitErrors.limitReached),
        },
      },
    },
    async (request, reply) => {
      const arrival = await connector.finish(parametersOf(request.query))
      // Neither the code nor the return URL may reach caches or other sites.
      void reply.header('cache-control', 'no-store').header('referrer-policy', 'no-referrer')
      if (arrival.returnUrl !== undefined) return reply.redirect(arrival.returnUrl, 303)
      // A browser always gets a page; a program gets the error as JSON.
      if (!arrival.ok && !request.headers.accept?.includes('text/html')) {
        throw appErrors.connectRefused({ message: arrival.message })
      }
      return page(reply, arrival)
    },
  )
}

/** The text parameters that occur exactly once: RFC 6749 3.1 forbids repeated ones. */
function parametersOf(query: Readonly<Record<string, unknown>>): Record<string, string> {
  const once = Object.entries(query).filter(
    (entry): entry is [string, string] => typeof entry[1] === 'string' && entry[1].length <= mostLength,
  )
  return Object.fromEntries(once.slice(0, mostParameters))
}

function page(reply: FastifyReply, { ok, message }: Arrival): FastifyReply {
  const title = ok ? 'Connected' : 'Not connected'
  return reply
    .code(ok ? 200 : 400)
    .header('content-security-policy', "default-src 'none'; frame-ancestors 'none'; base-uri 'none'")
    .header('x-content-type-options', 'nosniff')
    .type('text/html; charset=utf-8')
    .send(
      `<!doctype html><html lang="en"><meta charset="utf-8"><title>${title}</title><h1>${title}</h1><p>${escaped(message)}</p></html>`,
    )
}

const entities: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
}
const escaped = (text: string): string => text.replaceAll(/[&<>"']/g, (character) => entities[character]!)
