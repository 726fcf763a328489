import { writeFile } from 'node:fs/promises'
import { isAppError } from '#kernel'
import type { OutputSchemas } from '#contracts/output-schema'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { RuntimeEvent } from '#contracts/run-event'
import type { RuntimeContext } from '#contracts/runtime'
import { type AppServer, startAppServer } from './app-server.ts'
import type { RuntimeBConfig } from './config.ts'
import { rpcFailure, runtimeBErrors } from './errors.ts'
import { Turn } from './turn.ts'
import { createForm, inputOf } from './prompt.ts'
import type { Homes } from './homes.ts'
import { launchOf, modelFile } from './launch.ts'
import { createListener, eventsOf, openThread, type Patience, serversOf, startTurn } from './thread.ts'

export interface RunDeps extends Pick<RuntimeContext<RuntimeBConfig>, 'config' | 'egress' | 'log'> {
  readonly homes: Homes
  readonly schemas: OutputSchemas
  readonly command: readonly [string, ...string[]]
  readonly patience: Patience
}

/** Model calls of one run unless the profile says otherwise. */
const defaultMaxSteps = 16

/**
 * One run: a process is started in the folder of the session, takes up its conversation or begins one, and does one turn. It
 * ends with the run: an idle session costs no memory, and no two sessions, nor their tenants, ever share a process.
 */
export async function* runTurn(
  envelope: RunEnvelope,
  signal: AbortSignal,
  deps: RunDeps,
): AsyncGenerator<RuntimeEvent> {
  const { runId, sessionId, profile, responseFormat } = envelope
  const { homes, patience } = deps
  if (profile.limits.maxOutputTokens !== undefined) {
    throw runtimeBErrors.unsupportedLimit({
      message: 'runtime_b cannot bound the output of a model call: remove limits.maxOutputTokens.',
    })
  }
  const form = responseFormat && createForm(responseFormat, deps.schemas)
  const input = inputOf(envelope.prompt, envelope.attachments, form?.instruction)
  const home = await homes.enter(sessionId, runId, (envelope.attempt ?? 1) > 1)
  let server: AppServer | undefined
  let turn: Turn | undefined
  let interrupt: (() => Promise<unknown>) | undefined
  let terminal: RuntimeEvent | undefined
  const onAbort = async (): Promise<void> => {
    await interrupt?.().catch(() => {})
    await server?.stop()
  }
  signal.addEventListener('abort', onAbort, { once: true })
  try {
    const launch = launchOf(envelope, home.folder, deps.config, deps.egress)
    await writeFile(launch.modelFile, modelFile(launch.model, deps.config.contextTokens))
    signal.throwIfAborted()
    server = startAppServer({ ...launch, command: deps.command })
    const { rpc } = server
    const threadId = await openThread(rpc, launch, home.threadId, profile.instructions, patience)
    if (envelope.runtimeSessionId !== threadId) yield { type: 'session_init', runtimeSessionId: threadId }
    const listen = createListener(server, patience)
    const maxSteps = profile.limits.maxSteps ?? defaultMaxSteps
    turn = new Turn({ model: profile.model, maxSteps, sessionServer: launch.sessionServer })
    const external = (envelope.mcpServers ?? []).map(({ name }) => name)
    yield* serversOf(external, turn, listen)
    const turnId = await startTurn(rpc, threadId, input, form?.schema, patience)
    turn.begin(turnId)
    interrupt = () => rpc.request('turn/interrupt', { threadId, turnId }, patience.interruptMs)
    yield* eventsOf(turn, listen)
    const output = form ? { output: form.read(turn.lastMessage) } : {}
    terminal = { type: 'result', text: turn.text, finishReason: 'stop', ...output }
  } catch (error) {
    // The host writes the last event of an aborted run, because it knows the reason.
    if (!signal.aborted) terminal = errorEvent(error, runId, server, deps)
  } finally {
    signal.removeEventListener('abort', onAbort)
    // Done before the terminal event, and also when the host stops reading: the next run must find this one's messages.
    await server?.stop()
    await homes.leave(sessionId, home, turn?.said === true)
  }
  if (terminal) yield terminal
}

/** The terminal event of a failed run. An unknown kind of failure is a bug, and is thrown to the host. */
function errorEvent(
  error: unknown,
  runId: string,
  server: AppServer | undefined,
  { log }: Pick<RunDeps, 'log'>,
): Extract<RuntimeEvent, { type: 'error' }> {
  const failure = isAppError(error) ? error : rpcFailure(error)
  if (!failure) throw error
  const { code, sentence = 'The run failed.', retryable, cause } = failure
  log.warn({ runId, code, reason: sentence, process: server?.ending }, 'run failed')
  log.debug({ runId, cause, stderr: server?.lastWords }, 'what Codex said')
  return { type: 'error', code, message: sentence, ...(retryable ? { retryable: true } : {}) }
}
