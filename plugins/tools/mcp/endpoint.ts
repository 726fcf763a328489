import type { FastifyReply, FastifyRequest } from 'fastify'
import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import { WebStandardStreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js'
import {
  CallToolRequestSchema,
  ErrorCode,
  ListToolsRequestSchema,
  McpError,
  type Tool,
} from '@modelcontextprotocol/sdk/types.js'
import { Type } from '@sinclair/typebox'
import { access, type App, appError, failure, isAppError } from '#kernel'
import type { RunnerSession, RunnerSessions } from '#contracts/runner'
import { callIdMeta } from '#contracts/tools'
import type { WorkerHub } from '#contracts/workers'

const unknownSession = appError('unknown_session', 404)
const noWorkers = appError('invalid or missing worker token: superseded', 401)
const methodNotAllowed = appError('method_not_allowed', 405, 'This endpoint keeps no streams: send POST.')
const emptyBatch = appError('invalid_request', 400, 'The batch is empty.')

const Params = Type.Object({ id: Type.String({ maxLength: 128 }) })

// The SDK checks them, and answers mistakes in the way of its protocol.
const Message = Type.Unknown({ description: 'A JSON-RPC message, or a batch of them.' })
const Answer = Type.Unknown({ description: 'A JSON-RPC answer, or a batch of them.' })

/** The session that a request is for, when its caller may use it. Specification 5.4. */
type Admission = (authorization: string | undefined, sessionId: string) => Promise<RunnerSession>

/**
 * Where the network is trusted, only a sandbox is not part of it, and shows the token of its worker. Where nobody is trusted
 * (`sandboxesOnly`), sessions without a sandbox do not exist.
 */
export const admission =
  (sessions: RunnerSessions, hub: WorkerHub | undefined, sandboxesOnly: boolean): Admission =>
  async (authorization, id) => {
    const session = sessions.get(id)
    // Specification 3.1: the endpoint exists only while the session is idle or running.
    if (session?.status !== 'idle' && session?.status !== 'running') throw unknownSession()
    if (session.profile.workerMode === 'sandbox') {
      if (!hub) throw noWorkers()
      await hub.authorize(authorization, session.tenantId, id)
    } else if (sandboxesOnly) throw unknownSession()
    return session
  }

/**
 * `POST /runner/sessions/{id}/mcp`, streamable HTTP. Stateless: answers are JSON, and the session is the one in the
 * path.
 */
export function mcpRoutes(app: App, sessions: RunnerSessions, who: string, admit: Admission): void {
  const schema = {
    tags: ['tools'],
    summary: "Speak MCP with a session's tools",
    description:
      'Streamable HTTP of the Model Context Protocol, without streams and without MCP sessions: each POST is answered with JSON.',
    params: Params,
    body: Message,
    response: {
      200: Answer,
      202: Type.Unsafe<undefined>({ type: 'null', description: 'Only notifications: there is nothing to answer.' }),
      401: failure('`invalid or missing worker token: …`: the session has a sandbox, whose worker alone may ask.'),
      404: failure('`unknown_session`: it is none of this runner, has failed or was shut down.'),
    },
  }
  app.post('/runner/sessions/:id/mcp', { ...access(who), schema }, async (request, reply) => {
    const session = await admit(request.headers.authorization, request.params.id)
    return answer(request, reply, sessions, session)
  })
  // No stream to open and no MCP session to end: the transport's specification asks for 405.
  const refuse = async (): Promise<never> => {
    throw methodNotAllowed({ headers: { allow: 'POST' } })
  }
  app.get('/runner/sessions/:id/mcp', { ...access(who), schema: { params: Params, hide: true } }, refuse)
  app.delete('/runner/sessions/:id/mcp', { ...access(who), schema: { params: Params, hide: true } }, refuse)
}

/** The SDK's web-standard transport gives its answer as a value, so the reply stays the kernel's: no hijacking. */
async function answer(
  request: FastifyRequest,
  reply: FastifyReply,
  sessions: RunnerSessions,
  session: RunnerSession,
): Promise<FastifyReply> {
  const transport = new WebStandardStreamableHTTPServerTransport({ enableJsonResponse: true })
  const server = createSessionServer(sessions, session)
  // Closing aborts the tool calls under way: their caller is gone.
  reply.raw.once('close', () => void server.close())
  await server.connect(transport)
  const headers = Object.entries(request.headers).filter(
    (entry): entry is [string, string] => typeof entry[1] === 'string',
  )
  const response = await transport.handleRequest(
    new Request(`http://runner${request.url}`, { method: 'POST', headers }),
    { parsedBody: withoutCancellations(request.body) },
  )
  return reply
    .code(response.status)
    .headers(Object.fromEntries(response.headers))
    .send(await response.text())
}

/**
 * Requests of one batch cannot cancel each other: the transport would wait for ever for the answer of a cancelled one.
 * A caller cancels by closing its connection.
 */
function withoutCancellations(body: unknown): unknown {
  if (!Array.isArray(body)) return body
  if (body.length === 0) throw emptyBatch()
  return body.filter((message: { method?: unknown } | null) => message?.method !== 'notifications/cancelled')
}

/** A longer id is none that a model server gave; the call is then as if it had no id. */
const maxCallId = 256

/**
 * For the client of runtime_a: results of more than 50,000 characters it would write to a file, which its model cannot read. The
 * most that it takes, and more than the toolkit lets a tool answer.
 */
const wholeResults = { 'anthropic/maxResultSizeChars': 500_000 }

/** One MCP server for one request: it holds no state, so any request may reach any connection. */
function createSessionServer(sessions: RunnerSessions, session: RunnerSession): Server {
  const server = new Server({ name: 'agent-orc-runner', version: '1' }, { capabilities: { tools: {} } })
  server.setRequestHandler(ListToolsRequestSchema, () => ({
    tools: sessions.toolSpecs(session).map(({ name, description, inputSchema }) => ({
      name,
      description,
      inputSchema: inputSchema as Tool['inputSchema'],
      _meta: wholeResults,
    })),
  }))
  server.setRequestHandler(CallToolRequestSchema, async ({ params }, { signal }) => {
    const given = params._meta?.[callIdMeta]
    const callId = typeof given === 'string' && given.length <= maxCallId ? given : undefined
    const result = await sessions
      .invokeTool(session, params.name, params.arguments ?? {}, signal, callId)
      .catch((error: unknown) => {
        // Outside the toolkit is the caller's mistake, not a tool's failure: the model must not mistake it for a result.
        if (isAppError(error)) throw new McpError(ErrorCode.InvalidParams, error.sentence ?? error.code)
        throw new McpError(ErrorCode.InternalError, 'The tool could not be called.')
      })
    return { content: [{ type: 'text', text: result.content }], isError: !result.ok }
  })
  return server
}
