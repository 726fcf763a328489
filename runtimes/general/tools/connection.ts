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
  /** Bytes of the list, which is held as long as the connection. */
  let listed = 0
  let calling = 0
  let changed = false
  let closed = false
  let renewing: Promise<McpSession> | undefined
  const patience = (): AbortSignal => (address.own ? signal : AbortSignal.any([signal, AbortSignal.timeout(connectMs)]))
  const open = (): Promise<McpSession> => openMcp(fetch, address, patience(), () => (changed = true))
  let session = await open()
  /** Bytes of the server's introduction. */
  const greeted = held?.bytes ?? 0
  /** Replaces a lost session by a new one, once for all calls that find it lost. */
  const renew = (lost: McpSession): Promise<McpSession> => {
    if (session !== lost) return Promise.resolve(session)
    renewing ??= open()
      .then((fresh) => {
        session = fresh
        // The new session may be with another server, so its tools may differ.
        changed = true
        void lost.client.close().catch(() => {})
        if (closed) void fresh.close().catch(() => {})
        return fresh
      })
      .finally(() => (renewing = undefined))
    return renewing
  }
  let tools: readonly Tool[] = []
  const definitionOf = (name: string) => tools.find((tool) => tool.name === name) as ServerCall['definition']
  /** Sessions whose connection broke. The next call does not use them. */
  const broken = new WeakSet<McpSession>()
  const call = async (params: Params, shown: string, again: boolean): Promise<ToolOutcome> => {
    const used = session
    try {
      const live = broken.has(used) ? await renew(used) : used
      return outcomeOf(await live.call({ ...params, definition: definitionOf(params.name), signal }))
    } catch (error) {
      const failure = signal.aborted ? 'refused' : failureOf(error, used.remembered)
      if (failure === 'cut') broken.add(used)
      if (again && (failure === 'expired' || failure === 'unreached')) {
        // The call was certainly not executed, so it may be sent again.
        const renewed = await renew(used).then(
          () => true,
          () => false,
        )
        if (renewed) return call(params, shown, false)
      }
      return failed(sentences[failure](shown, error))
    }
  }
  const list = async (): Promise<void> => {
    changed = false
    held?.keep(greeted)
    tools = permittedTools(await listTools(session, patience()), address.tools).map(toolOf)
    listed = held?.bytes ?? 0
  }
  try {
    await list()
    return {
      get tools() {
        return tools
      },
      get changed() {
        return changed
      },
      refresh: () => list().catch(() => {}),
      async call(name, input, callId, shown = name) {
        if (name !== approvalTool && !definitionOf(name)) return unknownTool(shown)
        calling++
        try {
          return await call({ name, input, meta: { [callIdMeta]: callId } }, shown, true)
        } finally {
          // The results of a step are kept until all of them are there.
          if (--calling === 0) held?.keep(listed)
        }
      },
      async close() {
        closed = true
        held?.keep(0)
        await session.close()
      },
    }
  } catch (error) {
    address.eras?.forget(address)
    held?.keep(0)
    void session.close().catch(() => {})
    throw error
  }
}

/** The tool as the model sees it. */
const toolOf = ({ name, description, inputSchema }: McpTool): Tool => ({
  name,
  inputSchema: inputSchema as Tool['inputSchema'],
  ...(description === undefined ? {} : { description: description.slice(0, maxDescriptionChars) }),
})

type Params = Pick<ServerCall, 'name' | 'input' | 'meta'>

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
