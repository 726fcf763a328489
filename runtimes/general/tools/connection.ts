import type { LanguageModelV4FunctionTool } from '@ai-sdk/provider'
import type { McpServer } from '#contracts/mcp-servers'
import type { ModelFetch } from '#contracts/model'
import { approvalTool } from '#contracts/approvals'
import { callIdMeta } from '#contracts/tools'
import {
  failureOf,
  listTools,
  type McpAddress,
  type McpSession,
  type McpTool,
  openMcp,
  permittedTools,
  type ServerCall,
} from '#kit/mcp'
import type { Held } from './room.ts'
import { failed, outcomeOf, type ToolOutcome, unknownTool } from './outcome.ts'

/** Milliseconds that an external server may take to connect and to list its tools. After that the run begins without the server. */
export const connectMs = 5_000
const maxDescriptionChars = 8_000

/** A tool under the name that its server gives it. */
export type Tool = Omit<LanguageModelV4FunctionTool, 'type'>

/** A connection to one MCP server for the length of one run. */
export interface Connection {
  readonly tools: readonly Tool[]
  /** True when the server's tools have changed since they were listed. */
  readonly changed: boolean
  /** Lists the tools again. If that fails, the old list stays. */
  refresh(): Promise<void>
  /** Never rejects for a failure of the tool itself: the model gets the failure and may continue. `shown`: the name that the model knows. */
  call(name: string, input: Readonly<Record<string, unknown>>, callId: string, shown?: string): Promise<ToolOutcome>
  close(): Promise<void>
}

/** The address of a server, and which of its tools the run may see and call. */
type ToolAddress = McpAddress & { readonly tools?: McpServer['tools'] | undefined }

/** Connects to a server and lists its tools. Rejects with the original error. `held`: the room for what the server answers. */
export async function connect(
  fetch: ModelFetch,
  server: Omit<ToolAddress, 'take'>,
  signal: AbortSignal,
  held?: Held,
): Promise<Connection> {
  const address = { ...server, take: held?.take }
  const link = new Link(fetch, address, signal)
  const connection = new ServerConnection(link, address.tools, held)
  try {
    await link.open()
    await connection.begin()
    return connection
  } catch (error) {
    address.eras?.forget(address)
    void connection.close().catch(() => {})
    throw error
  }
}

/** The session with a server, which is opened anew when the server has forgotten it or its connection broke. */
class Link {
  /** True when the server's tools have changed since they were listed. */
  changed = false
  #session: McpSession | undefined
  #renewing: Promise<McpSession> | undefined
  #closed = false
  /** Sessions whose connection broke. The next call does not use them. */
  readonly #broken = new WeakSet<McpSession>()
  readonly #fetch: ModelFetch
  readonly #address: McpAddress
  readonly #signal: AbortSignal

  constructor(fetch: ModelFetch, address: McpAddress, signal: AbortSignal) {
    this.#fetch = fetch
    this.#address = address
    this.#signal = signal
  }
  async open(): Promise<void> {
    this.#session = await this.#opened()
  }
  list(): Promise<readonly McpTool[]> {
    this.changed = false
    return listTools(this.#session!, this.#patience())
  }
  /** `again`: a call that the server has certainly not executed is sent once more. */
  async call(call: Omit<ServerCall, 'signal'>, shown: string, again = true): Promise<ToolOutcome> {
    const used = this.#session!
    try {
      const live = this.#broken.has(used) ? await this.#renew(used) : used
      return outcomeOf(await live.call({ ...call, signal: this.#signal }))
    } catch (error) {
      const failure = this.#signal.aborted ? 'refused' : failureOf(error, used.remembered)
      if (failure === 'cut') this.#broken.add(used)
      if (again && (failure === 'expired' || failure === 'unreached')) {
        const renewed = await this.#renew(used).then(
          () => true,
          () => false,
        )
        if (renewed) return this.call(call, shown, false)
      }
      return failed(sentences[failure](shown, error))
    }
  }
  async close(): Promise<void> {
    this.#closed = true
    await this.#session?.close()
  }

  #patience(): AbortSignal {
    const { own } = this.#address
    return own ? this.#signal : AbortSignal.any([this.#signal, AbortSignal.timeout(connectMs)])
  }
  #opened(): Promise<McpSession> {
    return openMcp(this.#fetch, this.#address, this.#patience(), () => (this.changed = true))
  }
  /** Replaces a lost session by a new one, once for all calls that find it lost. */
  #renew(lost: McpSession): Promise<McpSession> {
    if (this.#session !== lost) return Promise.resolve(this.#session!)
    this.#renewing ??= this.#opened()
      .then((fresh) => {
        this.#session = fresh
        // The new session may be with another server, so its tools may differ.
        this.changed = true
        void lost.client.close().catch(() => {})
        if (this.#closed) void fresh.close().catch(() => {})
        return fresh
      })
      .finally(() => (this.#renewing = undefined))
    return this.#renewing
  }
}

class ServerConnection implements Connection {
  tools: readonly Tool[] = []
  readonly #link: Link
  readonly #permitted: McpServer['tools'] | undefined
  readonly #held: Held | undefined
  /** Bytes of the server's introduction, and with its list, which are held as long as the connection. */
  #greeted = 0
  #listed = 0
  #calling = 0

  constructor(link: Link, permitted: McpServer['tools'] | undefined, held: Held | undefined) {
    this.#link = link
    this.#permitted = permitted
    this.#held = held
  }
  get changed(): boolean {
    return this.#link.changed
  }
  async begin(): Promise<void> {
    this.#greeted = this.#held?.bytes ?? 0
    await this.#list()
  }
  refresh(): Promise<void> {
    return this.#list().catch(() => {})
  }
  async call(...[name, input, callId, shown = name]: Parameters<Connection['call']>): Promise<ToolOutcome> {
    const definition = this.tools.find((tool) => tool.name === name) as ServerCall['definition']
    if (name !== approvalTool && !definition) return unknownTool(shown)
    this.#calling++
    try {
      return await this.#link.call({ name, input, meta: { [callIdMeta]: callId }, definition }, shown)
    } finally {
      // The results of a step are kept until all of them are there.
      if (--this.#calling === 0) this.#held?.keep(this.#listed)
    }
  }
  async close(): Promise<void> {
    // What arrives after this, such as the answer to the farewell, is kept by nobody.
    this.#held?.close()
    await this.#link.close()
  }

  async #list(): Promise<void> {
    this.#held?.keep(this.#greeted)
    this.tools = permittedTools(await this.#link.list(), this.#permitted).map(toolOf)
    this.#listed = this.#held?.bytes ?? 0
  }
}

/** The tool as the model sees it. */
const toolOf = ({ name, description, inputSchema }: McpTool): Tool => ({
  name,
  inputSchema: inputSchema as Tool['inputSchema'],
  ...(description === undefined ? {} : { description: description.slice(0, maxDescriptionChars) }),
})

const notCalled = (name: string): string => `The tool '${name}' could not be called.`
const sentences: Readonly<Record<ReturnType<typeof failureOf>, (name: string, error: unknown) => string>> = {
  expired: notCalled,
  unreached: notCalled,
  refused: notCalled,
  cut: (name) => `The connection broke while the tool '${name}' was called; whether it was executed is not known.`,
  // The server's message is about the model's own arguments, so the model may see it.
  arguments: (name, error) =>
    `The tool '${name}' refused the call: ${(error as Error).message.replaceAll(/MCP error -?\d+: /g, '').slice(0, 1_000)}`,
}
