import { Type } from '@sinclair/typebox'
import type { Dispatcher } from 'undici'
import { access, type App, failure } from '#kernel'
import { type Door, whileCalled } from '../door.ts'
import { mcpServerRefused, mcpServerUnreachable, unknownMcpServer } from '../errors.ts'
import { refusals } from '../schema.ts'
import { forward } from './forward.ts'
import { mcpRequest, pick } from './headers.ts'

const Params = Type.Object({ id: Type.String({ maxLength: 128 }), name: Type.String({ maxLength: 64 }) })

/** The external MCP servers of the run under way, each with the headers that its entry has. */
export function mcpServerRoutes(app: App, door: Door, dispatcher: Dispatcher): void {
  const schema = {
    tags: ['workers'],
    summary: 'Speak with an external MCP server of the run',
    description: 'Streamable HTTP of the Model Context Protocol. The runner adds the credentials.',
    params: Params,
    response: {
      200: { description: 'As the MCP server answers, streamed.', content: { '*/*': { schema: Type.Unknown() } } },
      ...refusals,
      404: failure('`unknown_mcp_server`: the run under way has none of this name.'),
      413: failure('`body_too_large`: more than 32 MiB.'),
      502: failure('`mcp_server_unreachable`, or `mcp_server_refused`: it does not take the credentials.'),
    },
  }
  const options = { ...access('worker'), exposeHeadRoute: false, schema }
  for (const method of ['GET', 'POST', 'DELETE'] as const) {
    app.route({
      method,
      url: '/runner/worker/:id/mcp-servers/:name',
      ...options,
      async handler(request, reply) {
        const { worker } = door.of(request)
        const server = worker.mcpServer(request.params.name)
        if (!server || !URL.canParse(server.url)) throw unknownMcpServer()
        const url = new URL(server.url)
        return forward(request, reply, {
          dispatcher,
          origin: url.origin,
          path: url.pathname + url.search,
          headers: { ...pick(request.headers, mcpRequest), ...lowerCased(server.headers) },
          signal: whileCalled(reply, worker.closed),
          unreachable: mcpServerUnreachable,
          refused: mcpServerRefused,
        })
      },
    })
  }
}

/** So that a configured header takes the place of the worker's, and does not stand beside it. */
const lowerCased = (headers: Readonly<Record<string, string>> = {}): Record<string, string> =>
  Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]))
