import type { FastifyRequest } from 'fastify'
import { Agent } from 'undici'
import type { App } from '#kernel'
import type { Door } from '../door.ts'
import { mcpServerRoutes } from './mcp.routes.ts'
import { modelRoutes } from './models.routes.ts'
import type { ModelServer } from './servers.ts'

/** A model may think for minutes before its first byte; the run's own deadline ends it sooner. */
const firstByteMs = 300_000
const connectMs = 10_000

export interface Egress {
  /** In a scope of their own: here a body is a stream, whatever its content type says. */
  routes(app: App): Promise<void>
  close(): Promise<void>
}

/** The way out of sandboxes: to model servers and to external MCP servers, with credentials that only the runner has. */
export function createEgress(door: Door, servers: ReadonlyMap<string, ModelServer>): Egress {
  const agent = new Agent({
    // As many connections as there are open streams; an abort must close the socket, or the model goes on generating.
    connections: null,
    pipelining: 1,
    allowH2: false,
    connect: { timeout: connectMs },
    headersTimeout: firstByteMs,
    // An MCP stream may be silent for as long as its server has nothing to say.
    bodyTimeout: 0,
  })
  return {
    async routes(app) {
      app.removeAllContentTypeParsers()
      app.addContentTypeParser('*', (_request: unknown, body: unknown, done: (error: null, body: unknown) => void) =>
        done(null, body),
      )
      door.protect(app, credentialOf)
      modelRoutes(app, door, agent, servers)
      mcpServerRoutes(app, door, agent)
    },
    close: () => agent.destroy(),
  }
}

/** Vendor processes know no token: they send what they were given as their API key. */
function credentialOf({ headers }: FastifyRequest): string | undefined {
  const key = headers['x-api-key']
  return headers.authorization ?? (typeof key === 'string' ? `Bearer ${key}` : undefined)
}
