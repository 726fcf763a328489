import type { RuntimeEvent } from '#contracts/run-event'
import type { Turn } from './events.ts'
import type { RpcClient } from './json-rpc.ts'
import { mcpStartSeconds, type RunLaunch } from './launch.ts'
import type { Listen } from './listener.ts'
import type { Patience } from './patience.ts'
import type { McpServerReported, ThreadOpened, TurnStarted, UserInput } from './protocol.ts'

/** Takes up the conversation of that id, or begins one. Resolves to its id. */
export async function openThread(
  rpc: RpcClient,
  { model, modelProvider, config, folder }: RunLaunch,
  threadId: string | undefined,
  instructions: string,
  { startMs, answerMs }: Patience,
): Promise<string> {
  const clientInfo = { name: 'agent-orc', version: '1' }
  const capabilities = { experimentalApi: true, requestAttestation: false }
  await rpc.request('initialize', { clientInfo, capabilities }, startMs)
  rpc.notify('initialized')
  const common = { model, modelProvider, config, cwd: folder, baseInstructions: instructions }
  // The session's tool server is connected meanwhile.
  const openMs = answerMs + mcpStartSeconds * 1_000
  const { thread } = await (threadId === undefined
    ? rpc.request<ThreadOpened>('thread/start', { ...common, environments: [] }, openMs)
    : rpc.request<ThreadOpened>('thread/resume', { ...common, threadId, excludeTurns: true }, openMs))
  return thread.id
}

/** Resolves to the turn's id. */
export async function startTurn(
  rpc: RpcClient,
  threadId: string,
  input: readonly UserInput[],
  outputSchema: object | undefined,
  { answerMs }: Patience,
): Promise<string> {
  // Without an environment there is nothing that a tool of this machine could act on. A conversation does not keep that.
  const params = { threadId, input, environments: [], ...(outputSchema ? { outputSchema } : {}) }
  return (await rpc.request<TurnStarted>('turn/start', params, answerMs)).turn.id
}

/**
 * Waits for the external servers of a run, as long as each may take: Codex itself would begin after a second without those that
 * are further away. One that cannot be reached costs the run only its own tools.
 */
export async function* serversOf(names: readonly string[], turn: Turn, listen: Listen): AsyncGenerator<RuntimeEvent> {
  const awaited = new Set(names)
  while (awaited.size > 0) {
    const notification = await listen()
    const { method, params } = notification
    yield* turn.take(notification)
    if (method !== 'mcpServer/startupStatus/updated') continue
    const { name, status } = params as McpServerReported
    if (status === 'starting' || !awaited.delete(name) || status === 'ready') continue
    yield { type: 'progress', stage: 'mcp_server_unavailable', server: name, message: 'It cannot be connected.' }
  }
}

/** What the turn says, until it has ended as it should. Throws whatever ended it otherwise. */
export async function* eventsOf(turn: Turn, listen: Listen): AsyncGenerator<RuntimeEvent> {
  while (!turn.completed) yield* turn.take(await listen(() => turn.waitsForTool))
}
