import { Type } from '@sinclair/typebox'
import { access, type App, failures, invalidRequest, NoContent, notFound } from '#kernel'
import { appErrors } from '#contracts/apps'
import type { Guard } from '#contracts/auth'
import type { Database } from '#contracts/database'
import { isId } from '#contracts/ids'
import { limitErrors } from '#contracts/limits'
import { webhookErrors } from '#contracts/webhooks'
import { type ListSql, readList, sendList } from '#kit/lists'
import { columns, type Connection } from './connections/store.ts'
import type { Connector } from './connect.ts'
import { tags } from './routes.ts'
import {
  ConnectAnswer,
  ConnectBody,
  ConnectionParams,
  ConnectionsQuery,
  ConnectionView,
  ToolkitParams,
} from './schema.ts'
import type { Toolkits } from './toolkits.ts'

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

export const viewOf = (row: Connection): ConnectionView => {
  const { id, toolkit, endUserId, state, reason, expiresAt, renewable, webhookUrl, createdAt, updatedAt } = row
  return {
    id,
    toolkit,
    ...(endUserId === '' ? {} : { endUserId }),
    state,
    ...(reason === null ? {} : { reason }),
    ...(expiresAt === null ? {} : { expiresAt }),
    renewable,
    ...(webhookUrl === null ? {} : { webhook: { url: webhookUrl } }),
    createdAt,
    updatedAt,
  }
}
