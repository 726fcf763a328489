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
import { invalidRequest, isAppError } from '#kernel'
import type { RunnerSession, RunnerSessions } from '#contracts/runner'
import { callIdMeta } from '#contracts/tools'

/** The SDK's web-standard transport gives its answer as a value, so the reply stays the kernel's: no hijacking. */
export async function answer(
  request: FastifyRequest,
  reply: FastifyReply,
  sessions: RunnerSessions,
  session: RunnerSession,
): Promise<FastifyReply> {
  const transport = new WebStandardStreamableHTTPServerTransport({ enableJsonResponse: true })
  const server = createSessionServer(sessions, session)
  // A closed connection means that the caller is gone: closing the server aborts the tool calls under way.
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
  if (body.length === 0) throw invalidRequest({ message: 'The batch is empty.' })
  return body.filter((message: { method?: unknown } | null) => message?.method !== 'notifications/cancelled')
}

/** A longer id is none that a model server gave; the call is then as if it had no id. */
const maxCallId = 256

/**
 * The client of runtime_a would write a result of more than 50,000 characters to a file, which its model cannot read. This is the
 * largest limit that it accepts, and more than the toolkit lets a tool answer.
 */
const wholeResults = { 'anthropic/maxResultSizeChars': 500_000 }

/** One MCP server for one request: it holds no state, so any request may reach any connection. */
function createSessionServer(sessions: RunnerSessions, session: RunnerSession): Server {
  // The validator checks answers to questions that a server asks a user. We ask none, and making the usual one costs milliseconds for
  // each call of a tool.
  const server = new Server(
    { name: 'agent-orc-runner', version: '1' },
    { capabilities: { tools: {} }, jsonSchemaValidator: { getValidator: () => refuse } },
  )
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

const refuse = (): never => {
  throw new Error('not used')
}
