import { writeFile } from 'node:fs/promises'
import { createOutputSchemas, type OutputSchema, type OutputSchemas } from '#kit/schemas'
import { defineRuntime, type Runtime, type RuntimeContext } from '#contracts/runtime'
import { archiveErrors } from '#kit/archive'
import { runSlots, type Shares } from '#kit/turns'
import { isAppError } from '#kernel'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { RuntimeEvent } from '#contracts/run-event'
import {
  attachedText,
  type Attachment,
  type InlineAttachment,
  inlineOf,
  isCommonImage,
  type ResponseFormat,
} from '#contracts/prompt'
import { isStrictSchema } from '#contracts/strict-schema'
import { RuntimeBConfig } from './config.ts'
import { Homes } from './homes.ts'
import { type AppServer, codexProgram, startAppServer } from './app-server.ts'
import {
  createListener,
  eventsOf,
  openThread,
  type Patience,
  patience as usualPatience,
  serversOf,
  startTurn,
} from './thread.ts'
import { rpcFailure, runtimeBErrors } from './errors.ts'
import { Turn } from './turn.ts'
import { launchOf, modelFile } from './launch.ts'
import type { UserInput } from './protocol.ts'

/** The runtime `runtime_b`: Codex, with one `codex app-server` process per run and without any tool of this machine. */
export default defineRuntime({
  name: 'runtime_b',
  config: RuntimeBConfig,
  errors: [runtimeBErrors, archiveErrors],
  create: (ctx) => runtimeB(ctx),
})

export interface RuntimeBOptions {
  /** The program that is run instead of the installed one. */
  readonly command?: readonly [string, ...string[]]
  readonly patience?: Patience
}

export async function runtimeB(
  { config, egress, log, onStop }: Omit<RuntimeContext<RuntimeBConfig>, 'models' | 'loads'>,
  { command, patience = usualPatience }: RuntimeBOptions = {},
): Promise<Runtime> {
  const homes = new Homes()
  onStop(() => homes.close())
  const program = codexProgram()
  if (!command && program.missing !== undefined) log.info(program.missing)
  const schemas = createOutputSchemas()
  const slots = runSlots(config.maxProcesses, runtimeBErrors.runtimeBusy)
  return {
    contract: 'runtime/1',
    get missing() {
      return command ? undefined : program.missing
    },
    async *run(envelope, signal) {
      const deps = { config, egress, log, homes, slots, schemas, command: command ?? [program.path()], patience }
      yield* runTurn(envelope, signal, deps)
    },
    exportState: (sessionId) => homes.exportState(sessionId),
    hydrate: (sessionId, { bytes }) => homes.hydrate(sessionId, bytes),
    has: (sessionId) => homes.has(sessionId),
    forget: (sessionId) => homes.forget(sessionId),
  }
}

interface RunDeps extends Pick<RuntimeContext<RuntimeBConfig>, 'config' | 'egress' | 'log'> {
  readonly homes: Homes
  readonly slots: Shares
  readonly schemas: OutputSchemas
  readonly command: readonly [string, ...string[]]
  readonly patience: Patience
}

/** The most model calls of one run, unless the profile sets a limit. */
const defaultMaxSteps = 16

/**
 * One run: starts a process in the folder of the session, resumes or begins the conversation, and executes one turn. The process ends with the run,
 * so an idle session costs no memory, and no two sessions or tenants ever share a process.
 */
export async function* runTurn(
  envelope: RunEnvelope,
  signal: AbortSignal,
  deps: RunDeps,
): AsyncGenerator<RuntimeEvent> {
  const { runId, sessionId, profile, responseFormat } = envelope
  const { homes, slots, patience } = deps
  if (profile.limits.maxOutputTokens !== undefined) {
    throw runtimeBErrors.unsupportedLimit({
      message: 'runtime_b cannot bound the output of a model call: remove limits.maxOutputTokens.',
    })
  }
  const form =
    responseFormat && createForm(responseFormat, await deps.schemas(envelope.tenantId, responseFormat.schema))
  const input = inputOf(envelope.prompt, envelope.attachments, form?.instruction)
  const home = await homes.enter(envelope)
  let leave: (() => void) | undefined
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
    // Wait inside the home, because one that nobody is in may be removed meanwhile.
    leave = envelope.awaited ? slots.enterNow(envelope.tenantId) : await slots.enter(envelope.tenantId, signal)
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
    for (const one of launch.unavailable) yield { type: 'progress', stage: 'mcp_server_unavailable', ...one }
    yield* serversOf(launch.external, turn, listen)
    const turnId = await startTurn(rpc, threadId, input, form?.schema, patience)
    turn.begin(turnId)
    interrupt = () => rpc.request('turn/interrupt', { threadId, turnId }, patience.interruptMs)
    yield* eventsOf(turn, listen)
    const output = form ? { output: await form.read(turn.lastMessage) } : {}
    terminal = { type: 'result', text: turn.text, finishReason: 'stop', ...output }
  } catch (error) {
    // The host writes the last event of an aborted run, because it knows the reason.
    if (!signal.aborted) terminal = errorEvent(error, runId, server, deps)
  } finally {
    signal.removeEventListener('abort', onAbort)
    // Stop before the terminal event, and also when the host stops reading, because the next run must find this run's messages.
    await server?.stop()
    leave?.()
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

/** A prompt with its attachments, followed by `more`. Throws AppError `unsupported_attachment`. */
const inputOf = (
  prompt: string,
  attachments: readonly Attachment[] | undefined,
  more: string | undefined,
): UserInput[] => [
  textInput(prompt),
  ...inlineOf(attachments).map(attached),
  ...(more === undefined ? [] : [textInput(more)]),
]

function attached(attachment: InlineAttachment): UserInput {
  const { mediaType, data } = attachment
  // Of any other image Codex would only tell the model that there was one.
  if (isCommonImage(attachment)) return { type: 'image', url: `data:${mediaType};base64,${data}` }
  const text = attachedText(attachment)
  if (text !== undefined) return textInput(text)
  throw runtimeBErrors.unsupportedAttachment({
    message: `runtime_b takes texts and images (PNG, JPEG, GIF, WebP) as attachments, and not ${mediaType}.`,
  })
}

const textInput = (content: string): UserInput => ({ type: 'text', text: content, text_elements: [] })

/** The required form of a run's answer. */
interface Form {
  /** The schema for Codex, which sends it as strict. Undefined when the vendor would refuse it as strict. */
  readonly schema: object | undefined
  /** The sentence that tells the model the form when there is no `schema`. */
  readonly instruction: string | undefined
  /** The value in an answer. Rejects with AppError `invalid_output`. */
  read(answer: string): Promise<unknown>
}

function createForm({ schema }: ResponseFormat, checked: OutputSchema): Form {
  const strict = isStrictSchema(schema)
  return {
    schema: strict ? schema : undefined,
    instruction: strict
      ? undefined
      : `Answer with nothing but one JSON value that fits this JSON Schema: ${JSON.stringify(schema)}`,
    async read(answer) {
      let output: unknown
      try {
        output = JSON.parse(unfenced(answer))
      } catch (cause) {
        throw runtimeBErrors.invalidOutput({ cause, message: 'The answer is not JSON.' })
      }
      const problem = await checked.problem(output)
      if (problem !== undefined)
        throw runtimeBErrors.invalidOutput({ message: `The answer does not fit its form. ${problem}` })
      return output
    },
  }
}

/** Strips a code block: models that are told the form only in words often put JSON into one. */
const unfenced = (text: string): string => /^\s*```(?:json)?\n([^]*?)\n?```\s*$/.exec(text)?.[1] ?? text
