import { type Static, Type } from '@sinclair/typebox'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { access, type App, definePlugin, errorTable, failures, maybe, type PluginContext, unauthorized } from '#kernel'
import { type RunnerSession, RunnerSessions } from '#contracts/runner'
import { runnerErrors } from '#contracts/runner-errors'
import { WorkerHub, workerTokenErrors } from '#contracts/workers'
import { proofsOf, SessionRequests } from '#kit'
import type { SessionEndpoint } from './server.ts'

/** Errors before JSON-RPC starts. Failed tool calls use JSON-RPC errors instead: -32602 and -32603. */
const sessionMcpErrors = errorTable('session-mcp', {
  unknownSession: { status: 404, about: 'The session is not on this runner, has failed or was shut down.' },
  methodNotAllowed: { status: 405, message: 'This endpoint offers no streams: send POST.' },
})

/**
 * The MCP endpoint of each session: the platform tools of its toolkit, with the session as their context. It is a plugin of its
 * own, because the runner needs the toolkit, and this endpoint needs the runner.
 */
export default definePlugin({
  name: 'session-mcp',
  errors: [sessionMcpErrors, workerTokenErrors, runnerErrors],
  requires: { sessions: RunnerSessions, hub: maybe(WorkerHub) },
  async setup(ctx) {
    const { sessions, hub } = ctx.deps
    // Both listeners count together.
    const services = { sessions, requests: new SessionRequests(), loads: ctx.loads }
    ctx.routes('runner', async (app) => {
      const { demanded } = proofsOf(app)
      mcpRoutes(app, 'session', admission(sessions, hub, demanded ? 'tokens' : 'trust'), services)
    })
    // Only a role with sandbox workers needs this listener.
    if (ctx.listeners.includes('workers')) {
      ctx.routes('workers', async (app) => mcpRoutes(app, 'worker', admission(sessions, hub, 'sandboxes'), services))
    }
    return {}
  },
})

const Params = Type.Object({ id: Type.String({ maxLength: 128 }) })

// The MCP SDK validates messages, because the protocol prescribes how invalid ones are answered.
const Message = Type.Unknown({
  description: 'A JSON-RPC message, or a batch of them, at most one of which requests a list or a call.',
})
const Answer = Type.Unknown({ description: 'A JSON-RPC answer, or a batch of them.' })

/** Resolves to the session of a request if the caller may use it. Specification 5.4. */
type Admit = (authorization: string | undefined, sessionId: string) => Promise<RunnerSession>

/**
 * Who may use a session. A sandbox always shows the token of its worker. Other callers show nothing (`trust`), show the token of the present run so
 * that a stranger cannot learn which sessions exist (`tokens`), or find no session without a sandbox (`sandboxes`).
 */
const admission =
  (sessions: RunnerSessions, hub: WorkerHub | undefined, who: 'trust' | 'tokens' | 'sandboxes'): Admit =>
  async (authorization, id) => {
    const found = sessions.get(id)
    // Specification 3.1: the endpoint exists only while the session is idle or running.
    const session = found?.status === 'idle' || found?.status === 'running' ? found : undefined
    if (session?.profile.workerMode === 'sandbox') {
      if (!hub) throw workerTokenErrors.superseded()
      await hub.authorize(authorization, session.tenantId, id)
      return session
    }
    if (who === 'tokens' && !(session && sessions.admits(session, authorization))) throw noToken()
    if (!session || who === 'sandboxes') throw sessionMcpErrors.unknownSession()
    return session
  }

const noToken = (): Error =>
  unauthorized({ message: 'Send the token of the run under way as a bearer: its envelope has it as sessionMcpToken.' })

interface McpServices extends Pick<PluginContext, 'loads'> {
  readonly sessions: RunnerSessions
  readonly requests: SessionRequests
}

/**
 * `POST /runner/sessions/{id}/mcp`, streamable HTTP. Stateless: answers are JSON, and the session is the one in the
 * path.
 */
function mcpRoutes(app: App, who: string, admit: Admit, { sessions, requests, loads }: McpServices): void {
  const schema = {
    tags: ['tools'],
    summary: "Speak MCP with a session's tools",
    description:
      'Streamable HTTP of the Model Context Protocol, in the revision of 2026-07-28 and those before it, without MCP sessions: each POST is answered by itself, with JSON.',
    params: Params,
    body: Message,
    response: {
      200: Answer,
      202: Type.Unsafe<undefined>({ type: 'null', description: 'Only notifications: there is nothing to answer.' }),
      ...failures(
        ...Object.values(workerTokenErrors),
        sessionMcpErrors.unknownSession,
        runnerErrors.tooManySessionRequests,
      ),
    },
  }
  let endpoint: Promise<SessionEndpoint> | undefined
  const loaded = (): Promise<SessionEndpoint> =>
    (endpoint ??= import('./server.ts').then(({ SessionEndpoint }) => new SessionEndpoint()))
  loads(async () => (await loaded()).rehearse())
  // Before anything of the request is read or checked: a stranger must cause no work, and learn nothing from its mistakes.
  const admitted = ({ headers, params }: FastifyRequest): Promise<RunnerSession> =>
    admit(headers.authorization, (params as Static<typeof Params>).id)
  const counted = new WeakMap<FastifyRequest, ReturnType<SessionRequests['begin']>>()
  const onRequest = async (request: FastifyRequest, reply: FastifyReply): Promise<void> => {
    const { tenantId, id: sessionId } = await admitted(request)
    counted.set(request, requests.begin(request, reply, { tenantId, sessionId }))
  }
  app.post('/runner/sessions/:id/mcp', { ...access(who), schema, onRequest }, async (request, reply) => {
    // Again, because the run may have ended while the body arrived.
    const session = await admitted(request)
    const { until } = counted.get(request)!
    const held: RunnerSessions = { ...sessions, invokeTool: (...call) => until(sessions.invokeTool(...call)) }
    return (await loaded()).answer(request, reply, held, session)
  })
  // No stream to open and no MCP session to end: the transport's specification asks for 405.
  const known = proofsOf(app).demanded
    ? { onRequest: async (request: FastifyRequest) => void (await admitted(request)) }
    : {}
  const hidden = { ...access(who), ...known, schema: { params: Params, hide: true } }
  const refuse = async (): Promise<never> => {
    throw sessionMcpErrors.methodNotAllowed({ headers: { allow: 'POST' } })
  }
  app.get('/runner/sessions/:id/mcp', hidden, refuse)
  app.delete('/runner/sessions/:id/mcp', hidden, refuse)
}
