import type { AppError } from '#kernel'
import type { RuntimeEvent } from '#contracts/run-event'
import type { AppServer } from './app-server.ts'
import type { Notification, RpcClient } from './json-rpc.ts'
import { mcpStartSeconds, type RunLaunch } from './launch.ts'
import type { McpServerReported, ThreadOpened, TurnStarted, UserInput } from './protocol.ts'
import type { Turn } from './turn.ts'
import { runtimeBErrors } from './errors.ts'

/** Resumes the conversation with this id, or begins a new one. Resolves to its id. */
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
  // Longer, because Codex meanwhile connects to the session's tool server.
  const openMs = answerMs + mcpStartSeconds * 1_000
  const { thread } = await (threadId === undefined
    ? rpc.request<ThreadOpened>('thread/start', { ...common, environments: [] }, openMs)
    : rpc.request<ThreadOpened>('thread/resume', { ...common, threadId, excludeTurns: true }, openMs))
  return thread.id
}

/** Starts a turn and resolves to its id. */
export async function startTurn(
  rpc: RpcClient,
  threadId: string,
  input: readonly UserInput[],
  outputSchema: object | undefined,
  { answerMs }: Patience,
): Promise<string> {
  // Without environments a tool of this machine has nothing to act on. A conversation does not store this setting, so every turn repeats it.
  const params = { threadId, input, environments: [], ...(outputSchema ? { outputSchema } : {}) }
  return (await rpc.request<TurnStarted>('turn/start', params, answerMs)).turn.id
}

/**
 * Waits for the external servers of a run, as long as each may take. Codex itself would begin after a second, without slower servers. If a server
 * cannot be reached, the run only lacks its tools.
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
    yield {
      type: 'progress',
      stage: 'mcp_server_unavailable',
      server: name,
      message: 'The server cannot be connected.',
    }
  }
}

/** Yields the events of the turn until it has completed. If the turn ends otherwise, throws its error. */
export async function* eventsOf(turn: Turn, listen: Listen): AsyncGenerator<RuntimeEvent> {
  while (!turn.completed) yield* turn.take(await listen(() => turn.waitsForTool))
}

/** Resolves to the next notification of the process. Throws when it ends, or is silent for too long. */
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
    // The timer runs only while we wait, because a slow reader does not mean a silent process.
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

/** How long each step may take, in milliseconds. */
export interface Patience {
  /** The program's first answer: 0.1 s, and more when 300 MB come from a cold disk. */
  readonly startMs: number
  /** For answers that the process gives without the model. */
  readonly answerMs: number
  /** For the end of a turn that is being stopped. A stopped run has two seconds in all. */
  readonly interruptMs: number
  /** For silence of both the model and Codex. The other runtimes wait as long for a model's first byte. */
  readonly silenceMs: number
}
export const patience: Patience = { startMs: 20_000, answerMs: 10_000, interruptMs: 500, silenceMs: 300_000 }
