import type { FastifyReply, FastifyRequest } from 'fastify'
import { Type } from '@sinclair/typebox'
import { access, type App, failures, notFound } from '#kernel'
import { type Caller, type Guard, permitsServer } from '#contracts/auth'
import type { Kv } from '#contracts/kv'
import type { TenantLimits } from '#contracts/limits'
import type { McpServer, McpServers } from '#contracts/mcp-servers'
import { inTurns } from '#kit'
import type { ModelConnections } from '#kit/models'
import { catalogErrors, unknownEntry } from '../errors.ts'
import { knownName, tags } from '../routes.ts'
import { NameParams } from '../schema.ts'
import type { McpEndpoint } from '#kit/mcp-server'
import type { CatalogTools, CatalogToolsOptions } from './catalog-tools.ts'
import type { Upstreams, UpstreamsOptions } from './upstreams.ts'

interface EndpointOptions
  extends Omit<CatalogToolsOptions, 'upstreams' | 'limits'>, Omit<UpstreamsOptions, 'fetchFor'> {
  readonly connections: Readonly<Record<NonNullable<McpServer['addresses']>, ModelConnections>>
  readonly limits: Pick<TenantLimits, 'of' | 'paced'> | undefined
  readonly kv: Kv | undefined
}

interface Parts {
  readonly endpoint: McpEndpoint
  readonly tools: CatalogTools
  readonly upstreams: Upstreams
}

/** A tenant's limit on large downloads applies to answers above this size, in bytes. */
const smallBytes = 32 * 1024
/** How long clients may cache a list of tools. */
const listMs = 60_000

/** The catalog as one MCP endpoint. The MCP library is loaded at the first request. */
export class CatalogEndpoint {
  readonly #options: EndpointOptions
  #parts: Promise<Parts> | undefined

  constructor(options: EndpointOptions) {
    this.#options = options
  }

  /** `only` is the entry of an endpoint that serves a single entry. */
  async answer(request: FastifyRequest, reply: FastifyReply, caller: Caller, only?: string): Promise<FastifyReply> {
    const { endpoint, tools } = await this.#loaded()
    return endpoint.answer(request, reply, tools.of(caller, only), `${caller.tenantId} ${caller.keyId}`)
  }

  /** Calls a tool for another plugin. The call shares the MCP sessions of the endpoint. */
  async call(...call: Parameters<Upstreams['call']>): ReturnType<Upstreams['call']> {
    const { upstreams } = await this.#loaded()
    return upstreams.call(...call)
  }

  /** Loads the MCP library, and does in advance what its first messages would wait for. */
  async prepare(): Promise<void> {
    const { endpoint } = await this.#loaded()
    await endpoint.rehearse()
    await (await import('#kit/mcp')).rehearseMcp()
  }

  async close(): Promise<void> {
    const parts = await this.#parts
    await Promise.all([parts?.endpoint.close(), parts?.upstreams.close()])
  }

  #loaded(): Promise<Parts> {
    return (this.#parts ??= this.#load())
  }

  async #load(): Promise<Parts> {
    const [server, { CatalogTools }, { Upstreams }] = await Promise.all([
      import('#kit/mcp-server'),
      import('./catalog-tools.ts'),
      import('./upstreams.ts'),
    ])
    const { kv, connections, limits } = this.#options
    const upstreams = new Upstreams({
      ...this.#options,
      fetchFor: (tenantId, addresses) =>
        inTurns(connections[addresses].fetch, smallBytes, async (part) => {
          for await (const _ of limits?.paced(tenantId, ReadableStream.from([part])) ?? []);
        }),
    })
    return {
      upstreams,
      tools: new CatalogTools({ ...this.#options, upstreams }),
      endpoint: new server.McpEndpoint({ name: 'agent-orc', listMs, ...(kv ? { kv } : {}) }),
    }
  }
}

// The MCP library validates messages, because the protocol prescribes how invalid ones are answered.
const Message = Type.Union([Type.Object({}, { additionalProperties: true }), Type.Array(Type.Unknown())], {
  description:
    'A JSON-RPC message; in the revision of 2025-03-26, which alone has batches, several of them, at most one of which requests a list, a content or a call.',
})
const answers = {
  200: Type.Unknown({ description: 'A JSON-RPC answer; a stream of events when the call requests progress.' }),
  202: Type.Unsafe<undefined>({ type: 'null', description: 'A notification: there is nothing to answer.' }),
}

export function endpointRoutes(
  app: App,
  guard: Guard,
  servers: Pick<McpServers, 'unknown'>,
  endpoint: CatalogEndpoint,
): void {
  app.post(
    '/mcp/catalog',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Speak MCP with the tools of the catalog',
        description:
          'Streamable HTTP of the Model Context Protocol, in the revision of 2026-07-28 and those before it. The tools of all active entries are called `<entry>__<tool>`; a key has those that its `mcpServers` and `mcpToolPermissions` allow.',
        body: Message,
        response: answers,
      },
    },
    async (request, reply) => endpoint.answer(request, reply, guard.callerOf(request)),
  )
  app.post(
    '/mcp/catalog/:name',
    {
      ...access('member'),
      schema: {
        tags,
        summary: 'Speak MCP with the tools of one entry',
        description: 'Like `POST /mcp/catalog`, with the tools of this entry under the names of its server.',
        params: NameParams,
        body: Message,
        response: { ...answers, ...failures(notFound) },
      },
    },
    async (request, reply) => {
      const caller = guard.callerOf(request)
      const name = knownName(request.params.name)
      if (!permitsServer(caller.mcp, name)) throw unknownEntry()
      // A tool call resolves its entry itself, so only other requests need this check.
      const calls = (request.body as { method?: unknown } | null)?.method === 'tools/call'
      if (!calls && (await servers.unknown(caller.tenantId, [name])).length > 0) throw unknownEntry()
      return endpoint.answer(request, reply, caller, name)
    },
  )
  refusals(app, '/mcp/catalog', {})
  refusals(app, '/mcp/catalog/:name', { params: NameParams })
}

/** The endpoint has no stream to open and no MCP session to end. The transport's specification asks for 405 then. */
function refusals(app: App, url: string, schema: { readonly params?: typeof NameParams }): void {
  for (const method of ['GET', 'DELETE'] as const) {
    app.route({
      method,
      url,
      ...access('member'),
      schema: {
        tags,
        summary: method === 'GET' ? 'Listen to the endpoint: it offers no streams' : 'End an MCP session: it has none',
        ...schema,
        response: failures(catalogErrors.mcpMethodNotAllowed),
      },
      handler: async () => {
        throw catalogErrors.mcpMethodNotAllowed({ headers: { allow: 'POST' } })
      },
    })
  }
}
