import type { AppError } from '#kernel'
import type { RuntimeEvent } from '#contracts/run-event'
import type { AppServer } from './app-server.ts'
import type { Notification, RpcClient } from './json-rpc.ts'
import { mcpStartSeconds, type RunLaunch } from './launch.ts'
import type { McpServerReported, ThreadOpened, TurnStarted, UserInput } from './protocol.ts'
import type { Turn } from './turn.ts'
import { runtimeBErrors } from './errors.ts'

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

/** Says what the process reports, one after the other. Throws when it ends, or is silent for too long. */
type Listen = (waitsForTool?: () => boolean) => Promise<Notification>

export function createListener(server: AppServer, { silenceMs, answerMs }: Patience): Listen {
  const notifications = server.rpc.notifications[Symbol.asyncIterator]()
  let silence: Promise<AppError> | undefined
  const whoIsSilent = (): Promise<AppError> =>
    server.rpc.request('thread/loaded/list', {}, answerMs).then(
      () =>
        runtimeBErrors.modelError({
          message: `The model server said nothing for ${Math.round(silenceMs / 1_000)} s.`,
          retryable: true,
        }),
      () => runtimeBErrors.runtimeError({ message: 'Codex does not answer any more.', retryable: true }),
    )
  return async (waitsForTool = () => false) => {
    // Only while we wait: a reader who takes his time is nobody's silence.
    const timer = setTimeout(() => {
      if (waitsForTool()) timer.refresh()
      else silence = whoIsSilent().finally(() => void server.stop())
    }, silenceMs)
    const { done, value } = await notifications.next().finally(() => clearTimeout(timer))
    if (!done) return value
    throw (
      (await silence) ??
      runtimeBErrors.runtimeError({ message: 'Codex stopped in the middle of the turn.', retryable: true })
    )
  }
}

/** What is waited for. */
export interface Patience {
  /** The program's first answer: 0.1 s, and more when 300 MB come from a cold disk. */
  readonly startMs: number
  /** Answers that wait for nobody else. */
  readonly answerMs: number
  /** The end of a turn that is stopped, out of the two seconds that a stopped run has. */
  readonly interruptMs: number
  /** Neither the model nor Codex says anything; as long as the other runtimes wait for a model's first byte. */
  readonly silenceMs: number
}
export const patience: Patience = { startMs: 20_000, answerMs: 10_000, interruptMs: 500, silenceMs: 300_000 }
