import { Agent, request } from 'undici'
import { isAppError } from '#kernel'
import { newSessionId } from '#contracts/ids'
import { longestSecret, mostSecretsOfHost, shortestSecret } from '#contracts/egress'
import type { McpServers } from '#contracts/mcp-servers'
import type { Profile } from '#contracts/profiles'
import type { Fleet } from '#contracts/runner'
import { secretErrors, type Secrets, secretsIn, withSecrets } from '#contracts/secrets'
import { callIdMeta } from '#contracts/tools'
import { Gathered, inTurns, Mask } from '#kit'
import {
  guardedLookup,
  isNetworkAddress,
  isPublicAddress,
  outboundUrl,
  permittedAddresses,
  systemResolve,
} from '#kit/outbound'
import { isOwnHost, type OwnHost } from '#kit/own-hosts'
import type { McpSession } from '#kit/mcp'
import { createModelConnections } from '#kit/models'
import { type Evaluator, textOf, valueOf } from './evaluator.ts'
import { ExpressionError, type Scope } from './expressions.ts'
import type { NodeOf } from './node.schema.ts'
import { type Failure, mostOutput, tooLarge } from './outcome.ts'
import { small } from './scopes.ts'

/** The outcome of a call. */
export type CallResult = { /** As JSON. */ readonly output: string } | { readonly error: Failure }

/** What every call carries. */
export interface CallContext {
  readonly tenantId: string
  /** The idempotency key. It stays the same when a call is repeated because its outcome is unknown. */
  readonly key: string
  readonly attempt: number
  readonly signal: AbortSignal
  /** Resolves when it is the attempt's turn to hold much memory. Called before a large answer is read. */
  enter(): Promise<void>
}

export interface HttpCall {
  readonly url: string
  readonly method: string
  readonly headers: Readonly<Record<string, string>>
  /** The secrets that the headers name as written, before templates were filled in. */
  readonly secrets: ReadonlySet<string>
  readonly body: string | undefined
  readonly isJson: boolean
  readonly expect: readonly number[] | undefined
}

export interface CallsOptions {
  readonly fleet: Fleet
  readonly mcp: McpServers | undefined
  readonly secrets: Secrets | undefined
  /** The operator's own hosts, whose addresses may be private. */
  readonly allowHosts: readonly OwnHost[]
  readonly evaluator: Evaluator
}

/** Makes the calls of nodes in this process: HTTP requests, tools of runners and tools of MCP servers. */
export class Calls {
  readonly #options: CallsOptions
  readonly #agents = { public: agentFor(isPublicAddress), own: agentFor(isNetworkAddress) }
  readonly #mcp = {
    public: createModelConnections({ permits: permittedAddresses.public }),
    network: createModelConnections({ permits: permittedAddresses.network }),
    any: createModelConnections(),
  }

  constructor(options: CallsOptions) {
    this.#options = options
  }

  /** Sends one request. Redirects are not followed, because only the first address was checked. */
  async http(call: HttpCall, { tenantId, key, attempt, signal, enter }: CallContext): Promise<CallResult> {
    const own = URL.canParse(call.url) && isOwnHost(this.#options.allowHosts, tenantId, new URL(call.url))
    const policy = own
      ? { permits: isNetworkAddress, schemes: ['https', 'http'] }
      : { permits: isPublicAddress, schemes: ['https'] }
    const url = outboundUrl(call.url, policy)
    if (typeof url === 'string') {
      return final('forbidden_address', `The address may not be called (${url}): it must be public and https.`)
    }
    const values = await this.#valuesOf(tenantId, [...call.secrets])
    const mask = new Mask(Object.values(values))
    let left = mostHeaders
    const headers = Object.fromEntries(
      Object.entries(call.headers).map(([name, text]) => [
        name.toLowerCase(),
        // Text that only looks like a reference, because it came from an input or an answer, is sent unchanged.
        withSecrets(text, (secret) => {
          const value = values[secret] ?? `secret://${secret}`
          left -= value.length
          if (left < 0) throw headersTooLong()
          return value
        }),
      ]),
    )
    const type = call.isJson ? { 'content-type': 'application/json' } : {}
    let sent = false
    try {
      sent = true
      const answer = await request(url, {
        dispatcher: own ? this.#agents.own : this.#agents.public,
        method: call.method as 'GET',
        headers: { ...type, ...headers, 'idempotency-key': key, 'workflow-attempt': String(attempt) },
        ...(call.body === undefined ? {} : { body: call.body }),
        signal,
      })
      const text = await readUpTo(mask.stream(answer.body), mostOutput, enter)
      const status = answer.statusCode
      const isJson = /\bjson\b/i.test(String(answer.headers['content-type'] ?? ''))
      const body = text === undefined ? undefined : await this.#options.evaluator.json(tenantId, text, isJson)
      if (body === undefined) return { error: tooLarge }
      if (call.expect ? call.expect.includes(status) : status < 400)
        return { output: `{"status":${status},"body":${body}}` }
      const retryable = status >= 500 || status === 429 || status === 408
      return {
        error: {
          code: 'http_status',
          message: `The address answered ${status}.`,
          status,
          body: body.length <= 2_000 ? (JSON.parse(body) as unknown) : body.slice(0, 2_000),
          retryable,
        },
      }
    } catch (cause) {
      if (signal.aborted) throw cause
      const why = (cause as { code?: unknown }).code
      return {
        error: {
          code: 'unreachable',
          message: `The address could not be asked${typeof why === 'string' ? ` (${why})` : ''}.`,
          unknown: sent,
        },
      }
    }
  }

  /** The values of secrets that may be sent in headers. Rejects with `secret_unfit` when one cannot be masked in answers, or there are too many. */
  async #valuesOf(tenantId: string, names: readonly string[]): Promise<Readonly<Record<string, string>>> {
    if (names.length === 0 || !this.#options.secrets) return {}
    // A definition of an earlier version may have more.
    if (names.length > mostSecretsOfHost)
      throw secretErrors.secretUnfit({
        message: `The headers of the node refer to more than ${mostSecretsOfHost} secrets.`,
      })
    const references = Object.fromEntries(names.map((name) => [name, `secret://${name}`]))
    const values = await this.#options.secrets.headers(tenantId, references, 'workflows')
    const short = names.find((name) => values[name]!.length < shortestSecret)
    if (short !== undefined)
      throw secretErrors.secretUnfit({
        message: `The value of secret://${short} has less than ${shortestSecret} characters: an answer that repeats it could not be recognized.`,
      })
    const long = names.find((name) => values[name]!.length > longestSecret)
    if (long === undefined) return values
    throw secretErrors.secretUnfit({
      message: `The value of secret://${long} has more than ${longestSecret} characters, which is too long for a header.`,
    })
  }

  /** Calls a platform tool in a new session on some runner, or a tool of an MCP server: `<server>/<tool>`. */
  async tool(name: string, input: Readonly<Record<string, unknown>>, context: CallContext): Promise<CallResult> {
    const at = name.indexOf('/')
    return at < 0
      ? this.#platform(name, input, context)
      : this.#server(name.slice(0, at), name.slice(at + 1), input, context)
  }

  async #platform(name: string, input: unknown, { tenantId, key, signal }: CallContext): Promise<CallResult> {
    const link = this.#options.fleet.place({ runtime: 'general' })
    const sessionId = newSessionId(link.hash)
    await link.hydrate(tenantId, sessionId, profileWith(name))
    try {
      const { ok, content } = await link.invokeTool(tenantId, sessionId, { name, input, callId: key }, signal)
      return ok
        ? await this.#made(tenantId, content)
        : { error: { code: 'tool_failed', message: content.slice(0, 10_000) } }
    } catch (cause) {
      if (signal.aborted || !isAppError(cause)) throw cause
      if (cause.code === 'tool_not_allowed') return final('unknown_tool', `No runner has a tool '${name}'.`)
      return { error: { code: cause.code, message: cause.sentence ?? cause.code, unknown: cause.status >= 500 } }
    } finally {
      void link.deleteSession(tenantId, sessionId).catch(() => {})
    }
  }

  async #server(
    server: string,
    tool: string,
    input: Record<string, unknown>,
    context: CallContext,
  ): Promise<CallResult> {
    const { servers, unavailable } = (await this.#options.mcp?.resolve(context.tenantId, [server])) ?? noServers
    const [found] = servers
    if (!found) return final('unknown_tool', unavailable[0]?.message ?? `No MCP server is called '${server}'.`)
    const permit = found.tools?.find(({ name }) => name === tool)
    if (found.tools && !permit) {
      return final('unknown_tool', `The tool '${tool}' of '${server}' was not accepted.`)
    }
    const mcp = await import('#kit/mcp')
    const { fetch } = this.#mcp[found.addresses ?? 'any']
    const { url, transport, headers } = found
    let session: McpSession | undefined
    try {
      session = await mcp.openMcp(
        inTurns(fetch, small, context.enter),
        { url, transport, headers, maxAnswerBytes: mostOutput },
        context.signal,
      )
      if (permit?.digest !== undefined) {
        const listed = await mcp.listTools(session, context.signal)
        if (mcp.permittedTools(listed, [permit]).length === 0) {
          return final(
            'unknown_tool',
            `The definition of the tool '${tool}' of '${server}' has changed since it was accepted.`,
          )
        }
      }
      const meta = { [callIdMeta]: context.key, attempt: context.attempt }
      const answer = await session.call({ name: tool, input, meta, signal: context.signal })
      const content = (answer.content as readonly { type: string; text?: string }[] | undefined) ?? []
      const text = content.map((part) => (part.type === 'text' ? part.text : '')).join('\n')
      if (answer.isError) return { error: { code: 'tool_failed', message: text.slice(0, 10_000) } }
      const { structuredContent } = answer
      return structuredContent
        ? { output: JSON.stringify(structuredContent) }
        : await this.#made(context.tenantId, text)
    } catch (cause) {
      if (context.signal.aborted) throw cause
      const unknown = session !== undefined && mcp.failureOf(cause, true) !== 'unreached'
      return {
        error: {
          code: 'tool_failed',
          message: `The call of '${server}/${tool}' failed. ${mcp.whyUnavailable(cause)}`,
          unknown,
        },
      }
    } finally {
      void session?.close().catch(() => {})
    }
  }

  async #made(tenantId: string, text: string): Promise<CallResult> {
    const output = await this.#options.evaluator.json(tenantId, text)
    return output === undefined ? { error: tooLarge } : { output }
  }

  async close(): Promise<void> {
    const { public: open, own } = this.#agents
    await Promise.all([open.destroy(), own.destroy(), ...Object.values(this.#mcp).map((one) => one.close())])
  }
}

/** The most characters of a request's headers: what an author may write, and the values of secrets once more. Servers accept far less. */
const mostHeaders = 1024 * 1024
const headersTooLong = () => new ExpressionError(`the headers have more than ${mostHeaders} characters together`)

const noServers = { servers: [], unavailable: [] } as const
const final = (code: string, message: string): CallResult => ({ error: { code, message, retryable: false } })

const agentFor = (permits: (address: string) => boolean): Agent =>
  new Agent({
    connect: { lookup: guardedLookup(systemResolve, permits), timeout: 10_000 },
    // The node's own timeout ends the call.
    headersTimeout: 0,
    bodyTimeout: 0,
    maxHeaderSize: 16 * 1024,
    // Connections are not shared between tenants.
    pipelining: 0,
  })

/** The profile of a session that calls only this one tool. */
const profileWith = (tool: string): Profile => {
  const now = new Date().toISOString()
  return {
    name: 'workflow',
    id: 'workflow',
    runtime: 'general',
    model: 'builtin/demo',
    instructions: '',
    tools: [tool],
    skills: [],
    mcpServers: [],
    workerMode: 'static',
    limits: {},
    metadata: {},
    createdAt: now,
    updatedAt: now,
  }
}

/** Reads a body of at most `most` bytes; undefined: the body is larger. A large body waits for its turn, and the rest stays with the sender meanwhile. */
async function readUpTo(
  body: AsyncIterable<Buffer>,
  most: number,
  enter: () => Promise<void>,
): Promise<string | undefined> {
  const whole = new Gathered()
  for await (const chunk of body) {
    if (whole.size + chunk.length > most) return undefined
    whole.add(chunk)
    if (whole.size > small) await enter()
  }
  return whole.text()
}

/** The request of a node, with its templates filled in. */
export async function requestOf(
  evaluator: Evaluator,
  tenantId: string,
  spec: NodeOf<'http'>,
  scope: Scope,
): Promise<HttpCall> {
  const { url, method = 'GET', headers = {}, body, expect } = spec
  const made = await evaluator.render(tenantId, { url, headers, ...(body === undefined ? {} : { body }) }, scope)
  if (made.headers.length > mostHeaders) throw headersTooLong()
  const given = Object.entries(JSON.parse(made.headers) as Record<string, unknown>)
  const isText = made.body?.startsWith('"') ?? false
  return {
    url: textOf(made.url),
    method,
    headers: Object.fromEntries(
      given.map(([name, value]) => [
        name,
        (typeof value === 'string' ? value : JSON.stringify(value)).replaceAll(/[\r\n\0]/g, ''),
      ]),
    ),
    secrets: new Set(Object.values(headers).flatMap(secretsIn)),
    body: made.body === undefined ? undefined : textOf(made.body),
    isJson: made.body !== undefined && !isText,
    expect,
  }
}

/** The arguments of a tool, with their templates filled in. */
export async function inputOf(
  evaluator: Evaluator,
  tenantId: string,
  { arguments: given = {} }: NodeOf<'tool'>,
  scope: Scope,
): Promise<Record<string, unknown>> {
  return valueOf((await evaluator.render(tenantId, { given }, scope)).given)
}
