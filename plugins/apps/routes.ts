import { Type } from '@sinclair/typebox'
import { access, type App, failures, invalidRequest, notFound } from '#kernel'
import { appErrors } from '#contracts/apps'
import { auditedAccess } from '#contracts/audit'
import { type Guard, permitsServer, permitsTool } from '#contracts/auth'
import { limitErrors } from '#contracts/limits'
import { PageQuery } from '#contracts/paging'
import { listOf, sendList } from '#kit/lists'
import { AppToolView, CallAnswer, CallBody, ToolkitParams, ToolkitView, ToolsQuery } from './schema.ts'
import { type ActiveToolkit, checkTool, type Toolkits } from './toolkits.ts'

export const tags = ['apps']
/** The most items of one page. */
const atOnce = 200

const asking = [
  invalidRequest,
  appErrors.toolkitNotActive,
  appErrors.appNotConnected,
  appErrors.appUnavailable,
  appErrors.appBusy,
  appErrors.appsUnavailable,
] as const

/** Routes that list toolkits and their tools. */
export function toolkitRoutes(app: App, guard: Guard, toolkits: Toolkits): void {
  app.get(
    '/api/apps',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List apps',
        description:
          'The toolkits that are active for the tenant, by name: active entries of its MCP catalog, and those of other providers.',
        querystring: PageQuery,
        response: { 200: Type.Array(ToolkitView) },
      },
    },
    async (request, reply) => {
      const { query: page } = request
      const { tenantId, mcp } = guard.callerOf(request)
      const active = (await toolkits.active(tenantId)).filter(({ name }) => permitsServer(mcp, name))
      return sendList(request, reply, listOf(active, page, atOnce, viewOf), { page, item: ToolkitView })
    },
  )
  app.get(
    '/api/apps/:toolkit/tools',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'List the tools of an app',
        description: 'The tools that the tenant may call, as the app defines them.',
        params: ToolkitParams,
        querystring: ToolsQuery,
        response: { 200: Type.Array(AppToolView), ...failures(...asking) },
      },
    },
    async (request, reply) => {
      const { endUserId, ...page } = request.query
      const caller = guard.callerOf(request)
      const toolkit = await toolkits.findFor(caller, request.params.toolkit)
      const all = await toolkits.tools(caller.tenantId, toolkit, endUserId)
      const tools = all.filter(({ name }) => permitsTool(caller.mcp, toolkit.name, name))
      const list = listOf(tools, page, atOnce, ({ name, description, inputSchema }) => ({
        name,
        description,
        inputSchema,
      }))
      return sendList(request, reply, list, { page, item: AppToolView })
    },
  )
  app.post(
    '/api/apps/:toolkit/call',
    {
      ...auditedAccess('admin', 'apps.call'),
      schema: {
        tags,
        summary: 'Call a tool of an app',
        description:
          'Uses the account of the tenant, or of the named end user. A failure of the tool itself is 200 with `ok` false; `result` is the unchanged answer of the app.',
        params: ToolkitParams,
        body: CallBody,
        response: { 200: CallAnswer, ...failures(...asking, notFound, limitErrors.limitReached) },
      },
    },
    async (request) => {
      const { name: tool, arguments: input = {}, endUserId } = request.body
      const caller = guard.callerOf(request)
      const toolkit = await toolkits.findFor(caller, request.params.toolkit)
      checkTool(caller, toolkit.name, tool)
      await toolkits.waitForTurn(caller.tenantId)
      const { ok, result } = await toolkits.call(caller.tenantId, toolkit, { tool, input, endUserId })
      return { ok, result }
    },
  )
}

const viewOf = ({ name, description, provider, connection }: ActiveToolkit): ToolkitView => ({
  name,
  ...(description === undefined ? {} : { description }),
  provider,
  connection,
})
