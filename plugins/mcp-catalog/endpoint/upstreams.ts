import { hash } from 'node:crypto'
import { ProtocolError } from '@modelcontextprotocol/client'
import {
  digestOf,
  failureOf,
  isTimeout,
  listTools,
  type McpSession,
  noTimeout,
  openMcp,
  type Reason,
  reasonOf,
  whyUnavailable,
} from '#kit/mcp'
import { AtOnce } from '#kit'
import {
  type CallToolResult,
  invalidParams,
  limited,
  type PassedMethod,
  protocolError,
  type ToolCall,
} from '#kit/mcp-server'
import type { McpServer } from '#contracts/mcp-servers'
import type { ModelFetch } from '#contracts/model'
import type { CatalogMetrics } from '../metrics.ts'

/** Open sessions of one tenant and of all tenants; concurrent calls of one tenant and of all tenants, each in one process. */
const ofTenant = 64
const ofAll = 1_024
const callsOfTenant = 64
const callsOfAll = 512
/** An unused session is closed after this time. */
const idleMs = 5 * 60_000
const sweepMs = 30_000
/** How long connecting a server, or listing its tools, may take. */
const connectMs = 10_000
/** The largest answer of a server in bytes: room for a few pictures in base64. */
const maxAnswerBytes = 4 * 1024 * 1024
/** An accepted definition is compared with the server's present one at least this often. */
const digestsForMs = 60_000

export interface UpstreamsOptions {
  fetchFor(tenantId: string, addresses: NonNullable<McpServer['addresses']>): ModelFetch
  readonly callMs: number
  readonly metrics: CatalogMetrics
  readonly stopping: AbortSignal
}

interface Upstream {
  readonly key: string
  readonly tenantId: string
  readonly session: Promise<McpSession>
  calls: number
  usedAt: number
  /** The session is closing: it takes no new call, and its last running call closes it. */
  over: boolean
  /** The digests of the server's tools by name, and when they were read. */
  digests?: { readonly at: number; readonly of: Promise<ReadonlyMap<string, string>> } | undefined
}

/** A request that is passed on unchanged. */
export type Passed = [method: PassedMethod, params: object | undefined, signal: AbortSignal]

/** One request to a session. */
interface Ask {
  readonly name: string
  readonly signal: AbortSignal
  isPermitted(upstream: Upstream, session: McpSession, signal: AbortSignal): Promise<boolean>
  send(session: McpSession, signal: AbortSignal): Promise<CallToolResult>
  /** When set, an error of the server reaches the client in the server's own words. */
  readonly plain?: boolean
}

/** How a call ended. `away`: the server could not be reached. */
export type CallOutcome = 'ok' | 'tool_error' | 'away' | 'unauthorized' | 'timeout' | 'cancelled' | 'refused' | 'busy'
export interface Called {
  readonly outcome: CallOutcome
  readonly result: CallToolResult
}

/**
 * MCP sessions with the servers of tenants. Calls of a tenant that send the same headers share a session, so a changed entry or a new token opens
 * another one. When there are too many sessions, the least recently used idle one is closed.
 */
export class Upstreams {
  readonly #options: UpstreamsOptions
  /** In the order of their last use, the most recent one last. */
  readonly #open = new Map<string, Upstream>()
  /** Calls within one second share one `McpServer` object, so the key of each object is computed once. */
  readonly #keys = new WeakMap<McpServer, string>()
  readonly #calls = new AtOnce()
  #callsOfAll = 0
  #sweep: NodeJS.Timeout | undefined

  constructor(options: UpstreamsOptions) {
    this.#options = options
    options.metrics.upstreams(() => this.#open.size)
  }

  /** Rejects only with a `protocolError` that the server answered. `tool` is the server's own name of the tool. */
  call(
    tenantId: string,
    server: McpServer,
    tool: string,
    { name, input, signal, progress }: ToolCall,
  ): Promise<Called> {
    return this.#ask(tenantId, server, {
      name,
      signal,
      isPermitted: (upstream, session, ends) => this.#isPermitted(upstream, session, server, tool, ends),
      send: (session, ends) => session.call({ name: tool, input, signal: ends, progress }),
    })
  }

  /** Resolves to the server's answer, or 'unauthorized' when the server refuses the entry's headers; rejects with a `protocolError`. */
  async pass(
    tenantId: string,
    server: McpServer,
    ...[method, params, signal]: Passed
  ): Promise<object | 'unauthorized'> {
    let answer: object | undefined
    const { outcome, result } = await this.#ask(tenantId, server, {
      name: method,
      signal,
      plain: true,
      isPermitted: async () => true,
      async send({ client }, ends) {
        const has = client.getServerCapabilities()?.[capabilityOf(method)] !== undefined
        const request = { method, ...(params ? { params: params as Record<string, unknown> } : {}) }
        answer = has ? await client.request(request, { signal: ends, timeout: noTimeout }) : nothingOf(method)
        return { content: [] }
      },
    })
    if (outcome === 'unauthorized') return outcome
    if (answer) return answer
    const [said] = result.content
    throw limited(said?.type === 'text' ? said.text : 'The server could not be asked.')
  }

  async #ask(tenantId: string, server: McpServer, call: Ask): Promise<Called> {
    if (this.#calls.of(tenantId) >= callsOfTenant || this.#callsOfAll >= callsOfAll) return failed('busy', busy)
    const end = this.#calls.begin(tenantId)
    this.#callsOfAll++
    // One controller and one timer, because combining abort signals costs a call more than looking up its entry.
    const abort = new AbortController()
    const { signal } = abort
    const late = setTimeout(() => abort.abort(new Error('late')), this.#options.callMs)
    const leave = (): void => abort.abort(call.signal.reason)
    if (call.signal.aborted) leave()
    call.signal.addEventListener('abort', leave, { once: true })
    try {
      return await this.#attempt(tenantId, server, { ...call, signal }, true)
    } catch (error) {
      if (call.signal.aborted) return failed('cancelled', `The call of '${call.name}' was cancelled.`)
      if (signal.aborted) return failed('timeout', tookTooLong(call.name, this.#options.callMs))
      throw error
    } finally {
      clearTimeout(late)
      call.signal.removeEventListener('abort', leave)
      this.#callsOfAll--
      end()
    }
  }

  async close(): Promise<void> {
    clearInterval(this.#sweep)
    await Promise.all([...this.#open.values()].map((upstream) => this.#end(upstream)))
  }

  async #attempt(tenantId: string, server: McpServer, call: Ask, again: boolean): Promise<Called> {
    const upstream = this.#take(tenantId, server)
    if (!upstream) return failed('busy', busy)
    upstream.calls++
    let session: McpSession | undefined
    try {
      session = await unlessAborted(upstream.session, call.signal)
      if (!(await call.isPermitted(upstream, session, call.signal))) {
        return failed('refused', `The tool '${call.name}' is not as it was accepted; an admin has to look at it.`)
      }
      const result = await call.send(session, call.signal)
      return { outcome: result.isError ? 'tool_error' : 'ok', result }
    } catch (error) {
      if (call.signal.aborted) throw error
      const reason = reasonOf(error)
      const failure = reason.kind === 'too_large' ? 'refused' : failureOf(error, session?.remembered === true)
      if (session === undefined || failure === 'expired' || failure === 'unreached' || failure === 'cut') {
        void this.#end(upstream)
      }
      // The call was certainly not executed, so it may be repeated once.
      if (again && session && (failure === 'expired' || failure === 'unreached')) {
        return await this.#attempt(tenantId, server, call, false)
      }
      if (call.plain && error instanceof ProtocolError && failure !== 'cut') throw inItsWords(error)
      return outcomeOf(error, reason, failure, call.name, session !== undefined)
    } finally {
      upstream.calls--
      upstream.usedAt = performance.now()
      if (upstream.over) void this.#end(upstream)
    }
  }

  /** The open session with this server, or a new one. Undefined when all sessions that the tenant may have are in use. */
  #take(tenantId: string, server: McpServer): Upstream | undefined {
    const { url, transport, headers, addresses = 'network' } = server
    let key = this.#keys.get(server)
    if (key === undefined) {
      key = hash('sha256', JSON.stringify([tenantId, server.name, url, transport, headers, addresses]))
      this.#keys.set(server, key)
    }
    const found = this.#open.get(key)
    if (found) {
      this.#open.delete(key)
      this.#open.set(key, found)
      return found
    }
    const own = [...this.#open.values()].filter((one) => one.tenantId === tenantId)
    if (own.length >= ofTenant && !this.#makeRoom(own)) return undefined
    if (this.#open.size >= ofAll && !this.#makeRoom([...this.#open.values()])) return undefined
    const signal = AbortSignal.any([this.#options.stopping, AbortSignal.timeout(connectMs)])
    const changed = (): void => {
      upstream.digests = undefined
    }
    const fetch = this.#options.fetchFor(tenantId, addresses)
    const upstream: Upstream = {
      key,
      tenantId,
      session: openMcp(fetch, { url, transport, headers, maxAnswerBytes }, signal, changed),
      calls: 0,
      usedAt: performance.now(),
      over: false,
    }
    upstream.session.catch(() => {})
    this.#open.set(key, upstream)
    this.#sweep ??= setInterval(() => this.#endIdle(), sweepMs).unref()
    return upstream
  }

  #makeRoom(among: readonly Upstream[]): boolean {
    const unused = among.find(({ calls }) => calls === 0)
    if (unused) void this.#end(unused)
    return unused !== undefined
  }

  #endIdle(): void {
    const now = performance.now()
    for (const upstream of this.#open.values()) {
      if (upstream.calls === 0 && now - upstream.usedAt > idleMs) void this.#end(upstream)
    }
    if (this.#open.size > 0) return
    clearInterval(this.#sweep)
    this.#sweep = undefined
  }

  /** Takes the session out of use. Running calls finish first. */
  async #end(upstream: Upstream): Promise<void> {
    upstream.over = true
    if (this.#open.get(upstream.key) === upstream) this.#open.delete(upstream.key)
    if (upstream.calls > 0 && !this.#options.stopping.aborted) return
    await upstream.session.then((session) => session.close()).catch(() => {})
  }

  async #isPermitted(
    upstream: Upstream,
    session: McpSession,
    { tools }: McpServer,
    tool: string,
    signal: AbortSignal,
  ): Promise<boolean> {
    const permit = tools?.find(({ name }) => name === tool)
    if (!tools || (permit && permit.digest === undefined)) return true
    if (!permit) return false
    if (!upstream.digests || performance.now() - upstream.digests.at > digestsForMs) {
      const asking = AbortSignal.any([this.#options.stopping, AbortSignal.timeout(connectMs)])
      const of = listTools(session, asking).then((all) => new Map(all.map((one) => [one.name, digestOf(one)])))
      of.catch(() => (upstream.digests = undefined))
      upstream.digests = { at: performance.now(), of }
    }
    return (await unlessAborted(upstream.digests.of, signal)).get(tool) === permit.digest
  }
}

/** The code `MissingRequiredClientCapability`: the server needs a capability that we lack, so the client gets this error unchanged. */
const missingCapability = -32_021

function outcomeOf(
  error: unknown,
  reason: Reason,
  failure: ReturnType<typeof failureOf>,
  name: string,
  connected: boolean,
): Called {
  if (error instanceof ProtocolError && error.code === missingCapability) {
    throw inItsWords(error)
  }
  if (reason.kind === 'status' && reason.status === 401) return failed('unauthorized', refusesUs(name))
  if (!connected) return failed('away', `The tool '${name}' cannot be called. ${whyUnavailable(error)}`)
  if (reason.kind === 'too_large') return failed('refused', tooMuch(name))
  if (failure === 'cut' || isTimeout(error)) return failed('away', broke(name))
  // The server's message concerns the caller's arguments, so the caller is shown it.
  if (error instanceof ProtocolError)
    return failed('tool_error', `The tool '${name}' refused the call: ${textOf(error)}`)
  return failed('away', `The tool '${name}' could not be called. ${whyUnavailable(error)}`)
}

const inItsWords = ({ code, message, data }: ProtocolError): Error =>
  protocolError(code, message.replace(/^MCP error -?\d+: /, '').slice(0, 1_000), data)

const capabilityOf = (method: PassedMethod): 'resources' | 'prompts' | 'completions' =>
  method.startsWith('resources/') ? 'resources' : method.startsWith('prompts/') ? 'prompts' : 'completions'

/** The empty answer for a server without this capability. Rejects with a `protocolError` when the request names an item. */
export function nothingOf(method: PassedMethod): object {
  switch (method) {
    case 'resources/list':
      return { resources: [] }
    case 'resources/templates/list':
      return { resourceTemplates: [] }
    case 'prompts/list':
      return { prompts: [] }
    case 'completion/complete':
      return { completion: { values: [] } }
    default:
      throw invalidParams(method === 'prompts/get' ? 'There is no such prompt.' : 'There is no such resource.')
  }
}

const failed = (outcome: CallOutcome, text: string): Called => ({
  outcome,
  result: { content: [{ type: 'text', text }], isError: true },
})
const textOf = ({ message }: ProtocolError): string => message.replaceAll(/MCP error -?\d+: /g, '').slice(0, 1_000)
const refusesUs = (name: string): string =>
  `The tool '${name}' could not be called. Its server does not accept the credentials of the entry.`
const tooMuch = (name: string): string =>
  `The result of '${name}' is larger than ${maxAnswerBytes / 1024 / 1024} MiB, nests too deep or has too many values or messages.`
const broke = (name: string): string =>
  `The connection broke while the tool '${name}' was called; whether it was executed is not known.`
const tookTooLong = (name: string, ms: number): string => `'${name}' took longer than ${ms / 1000} s and was stopped.`
const busy = 'Many tools are being called at the moment; try again shortly.'

/** Stops waiting for one call. The session itself goes on, because other calls share it. */
function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  if (signal.aborted) return Promise.reject(signal.reason as Error)
  return new Promise((resolve, reject) => {
    const leave = (): void => reject(signal.reason as Error)
    signal.addEventListener('abort', leave, { once: true })
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', leave))
  })
}
