import type { FastifyReply, FastifyRequest } from 'fastify'
import { internalError, invalidParams, type ListToolsResult, McpEndpoint, type ServedTools } from '#kit/mcp-server'
import { isAppError } from '#kernel'
import type { RunnerSession, RunnerSessions } from '#contracts/runner'
import { callIdMeta } from '#contracts/tools'

/** Answers requests to the MCP endpoint of any session. */
export class SessionEndpoint {
  // A session's tools change with its next run at the earliest.
  readonly #endpoint = new McpEndpoint({ name: 'agent-orc-runner', listMs: 0 })

  rehearse(): Promise<void> {
    return this.#endpoint.rehearse()
  }

  answer(
    request: FastifyRequest,
    reply: FastifyReply,
    sessions: RunnerSessions,
    session: RunnerSession,
  ): Promise<FastifyReply> {
    return this.#endpoint.answer(request, reply, toolsOf(sessions, session))
  }
}

/** A longer id cannot come from a model server. Such a call counts as one without an id. */
const maxCallId = 256

/**
 * The client of runtime_a would write a result of more than 50,000 characters to a file, which its model cannot read. This is the
 * largest limit that it accepts, and more than the toolkit lets a tool answer.
 */
const wholeResults = { 'anthropic/maxResultSizeChars': 500_000 }

const toolsOf = (sessions: RunnerSessions, session: RunnerSession): ServedTools => ({
  list: () => ({
    tools: sessions.toolSpecs(session).map(({ name, description, inputSchema }) => ({
      name,
      description,
      inputSchema: inputSchema as ListToolsResult['tools'][number]['inputSchema'],
      _meta: wholeResults,
    })),
  }),
  async call({ name, input, meta, signal }) {
    const given = meta[callIdMeta]
    const callId = typeof given === 'string' && given.length <= maxCallId ? given : undefined
    const result = await sessions.invokeTool(session, name, input, signal, callId).catch((error: unknown) => {
      // An error outside the toolkit is the caller's mistake. As a JSON-RPC error, the model does not mistake it for a tool's result.
      throw isAppError(error)
        ? invalidParams(error.sentence ?? error.code)
        : internalError('The tool could not be called.')
    })
    return { content: [{ type: 'text', text: result.content }], isError: !result.ok }
  },
})
