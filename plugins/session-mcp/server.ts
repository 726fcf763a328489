import { Server } from '@modelcontextprotocol/sdk/server/index.js'
import {
  CallToolRequestSchema,
  ErrorCode,
  ListToolsRequestSchema,
  McpError,
  type Tool,
} from '@modelcontextprotocol/sdk/types.js'
import { isAppError } from '#kernel'
import { callIdMeta } from '#contracts/tools'
import type { RunnerSession, RunnerSessions } from '#contracts/runner'

/** A longer id is none that a model server gave; the call is then as if it had no id. */
const maxCallId = 256

/**
 * For the client of runtime_a: results of more than 50,000 characters it would write to a file, which its model cannot read. The
 * most that it takes, and more than the toolkit lets a tool answer.
 */
const wholeResults = { 'anthropic/maxResultSizeChars': 500_000 }

/** One MCP server for one request: it holds no state, so any request may reach any connection. */
export function createSessionServer(sessions: RunnerSessions, session: RunnerSession): Server {
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
