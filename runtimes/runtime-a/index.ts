import { type Static, Type } from '@sinclair/typebox'
import type { FastifyBaseLogger } from 'fastify'
import { Settings } from '#kernel'
import { createOutputSchemas, type OutputSchemas } from '#kit/schemas'
import { defineRuntime, type Runtime, type RuntimeContext } from '#contracts/runtime'
import { archiveErrors } from '#kit/archive'
import { runSlots, type Shares } from '#kit/turns'
import { attachedText, type InlineAttachment, inlineOf, isCommonImage } from '#contracts/prompt'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { RuntimeEvent } from '#contracts/run-event'
import { type Conversations, createConversations } from './conversations.ts'
import { modelId, modelServer, type ModelServer, optionsOf } from './options.ts'
import { createRoot, openScratch, type Root, type Scratch } from './root.ts'
import { type Message, type PromptBlock, type Query, type UserMessage, type Vendor, vendorPackage } from './sdk.ts'
import { errorEvent, processSilent, runtimeAErrors } from './errors.ts'
import { vendorProcess, type VendorProcess } from './process.ts'
import { toolServers } from './tool-servers.ts'
import { Turn } from './turn.ts'

const RuntimeAConfig = Settings({
  apiKey: Type.Optional(Type.String({ description: 'Sent as x-api-key. For sandbox workers only the runner has it.' })),
  baseUrl: Type.Optional(
    Type.String({
      pattern: '^(https?://.+)?$',
      expects: 'an http or https URL',
      description: 'With or without its final /v1; https://api.anthropic.com when only the key is set.',
    }),
  ),
  maxProcesses: Type.Integer({
    default: 32,
    minimum: 1,
    description:
      'Runs at once, of one tenant at most half of them: each is a process of about 100 MB, beside 50 MB that all of them share.',
  }),
})
type RuntimeAConfig = Static<typeof RuntimeAConfig>

/** The runtime `runtime_a`: the Claude Agent SDK, with one vendor process per run and only the session's tools. */
export default defineRuntime({
  name: 'runtime_a',
  config: RuntimeAConfig,
  errors: [runtimeAErrors, archiveErrors],
  create: (ctx) => runtimeA(ctx),
})

type Context = Pick<RuntimeContext<RuntimeAConfig>, 'config' | 'egress' | 'log' | 'onStop'>

/** `vendor` is used instead of the installed package. */
export async function runtimeA(
  { config, egress, log, onStop }: Context,
  vendor: Vendor = vendorPackage(),
): Promise<Runtime> {
  if (vendor.missing !== undefined) log.info(vendor.missing)
  const root = createRoot()
  onStop(root.remove)
  const conversations = createConversations(root)
  const deps = {
    vendor,
    conversations,
    root,
    slots: runSlots(config.maxProcesses, runtimeAErrors.runtimeBusy),
    schemas: createOutputSchemas(),
    log,
    server: () => modelServer(config, egress),
  }
  return {
    contract: 'runtime/1',
    get missing() {
      return vendor.missing
    },
    run: (envelope, signal) => runTurn(envelope, signal, deps),
    exportState: conversations.exportState,
    hydrate: conversations.hydrate,
    has: conversations.has,
    forget: conversations.forget,
  }
}

interface RunDeps {
  readonly vendor: Vendor
  readonly conversations: Conversations
  readonly root: Root
  readonly slots: Shares
  readonly schemas: OutputSchemas
  readonly log: Pick<FastifyBaseLogger, 'warn'>
  /** Throws AppError `unknown_model` when there is no such model. */
  server(): ModelServer
}

/** One run. It starts a vendor process, which is gone before the last event. */
export async function* runTurn(
  envelope: RunEnvelope,
  signal: AbortSignal,
  deps: RunDeps,
): AsyncGenerator<RuntimeEvent> {
  const { runId, sessionId } = envelope
  let terminal: RuntimeEvent | undefined
  try {
    terminal = yield* answer(envelope, signal, deps)
  } catch (error) {
    if (signal.aborted) return
    terminal = errorEvent(error)
    deps.log.warn({ runId, sessionId, code: terminal.code, reason: terminal.message }, 'run failed')
  }
  // The host writes the last event of an aborted run, because it knows the reason.
  if (terminal && !signal.aborted) yield terminal
}

async function* answer(
  envelope: RunEnvelope,
  signal: AbortSignal,
  { vendor, conversations, root, slots, schemas, server }: RunDeps,
): AsyncGenerator<RuntimeEvent, RuntimeEvent | undefined> {
  if (vendor.missing !== undefined) throw runtimeAErrors.runtimeNotInstalled({ message: vendor.missing })
  const prompt = promptBlocks(envelope)
  const tools = toolServers(envelope)
  const place = { model: modelId(envelope.profile.model), server: server() }
  const { query } = await vendor.load()
  const conversation = await conversations.begin(envelope)
  const turn = new Turn(envelope, tools, schemas)
  try {
    // Wait inside the conversation, because one that nobody is in may be removed meanwhile.
    const leave = envelope.awaited ? slots.enterNow(envelope.tenantId) : await slots.enter(envelope.tenantId, signal)
    try {
      yield* inScratch(root, (scratch) => {
        const process = vendorProcess()
        const options = optionsOf(envelope, { ...place, conversation, scratch, tools, spawn: process.spawn })
        return converse((input) => query({ prompt: input, options }), prompt, turn, process, signal)
      })
    } finally {
      leave()
    }
    return turn.result
  } finally {
    // Settle before the last event, and also when the host stops reading, because the next run must find this run's messages.
    await conversations.settle(envelope.sessionId, turn.spoke)
  }
}

async function* inScratch<T>(root: Root, work: (scratch: Scratch) => AsyncGenerator<T>): AsyncGenerator<T> {
  const scratch = await openScratch(root)
  try {
    yield* work(scratch)
  } finally {
    await scratch.remove()
  }
}

/** Milliseconds until a process's first message. It loads itself and connects to MCP servers, a few at a time, each for 5 s at most. */
const startMs = 60_000
/** Milliseconds that a process may continue after its last message. It saves the conversation, which takes some 100 ms. */
const lingerMs = 2_000

/** Has the vendor answer one prompt. The process is gone when it ends, however it ends. */
async function* converse(
  ask: (prompt: AsyncIterable<UserMessage>) => Query,
  content: readonly PromptBlock[],
  turn: Turn,
  process: VendorProcess,
  signal: AbortSignal,
): AsyncGenerator<RuntimeEvent> {
  const { promise: answered, resolve: close } = Promise.withResolvers<void>()
  // While this input is open the process can be told to stop. When the input ends, the process ends by itself.
  const prompt = async function* (): AsyncGenerator<UserMessage> {
    yield { type: 'user', message: { role: 'user', content }, parent_tool_use_id: null }
    await answered
  }
  let failure: unknown
  const query = ask(prompt())
  const messages = query[Symbol.asyncIterator]()
  const stop = (): Promise<void> => process.stop(() => query.interrupt())
  const fail = (error: unknown): void => {
    failure ??= error
    void stop()
  }
  const onAbort = (): void => void stop()
  const silence = setTimeout(() => fail(processSilent()), startMs)
  let linger: NodeJS.Timeout | undefined
  try {
    if (signal.aborted) onAbort()
    else signal.addEventListener('abort', onAbort, { once: true })
    for (;;) {
      const message = await next(messages)
      if (message === undefined) break
      clearTimeout(silence)
      if (message.type === 'result') {
        close()
        linger = setTimeout(() => void stop(), lingerMs)
      }
      // Read the remaining messages anyway, because the process is still writing.
      if (failure !== undefined) continue
      try {
        yield* turn.take(message)
      } catch (error) {
        fail(error)
      }
    }
    if (failure === undefined && !turn.over) failure = runtimeAErrors.runtimeError({ retryable: true })
  } finally {
    clearTimeout(silence)
    clearTimeout(linger)
    signal.removeEventListener('abort', onAbort)
    close()
    if (!turn.over) await stop()
    await process.gone()
    await messages.return?.().catch(() => {})
  }
  if (failure !== undefined) throw failure
}

/** The next message; undefined at the end. The vendor throws after a result that is an error, and when its process dies. */
async function next(messages: AsyncIterator<Message>): Promise<Message | undefined> {
  try {
    const { done, value } = await messages.next()
    return done ? undefined : value
  } catch {
    return undefined
  }
}

/** The prompt with its attachments. Throws AppError `unsupported_attachment` for an attachment that the vendor's models do not accept. */
const promptBlocks = ({ prompt, attachments }: Pick<RunEnvelope, 'prompt' | 'attachments'>): PromptBlock[] => [
  ...inlineOf(attachments).map(blockOf),
  { type: 'text', text: prompt },
]

function blockOf(attachment: InlineAttachment): PromptBlock {
  const { mediaType, data, name } = attachment
  const source = { type: 'base64' as const, media_type: mediaType, data }
  if (isCommonImage(attachment)) return { type: 'image', source }
  if (mediaType === 'application/pdf')
    return { type: 'document', source, ...(name === undefined ? {} : { title: name }) }
  const text = attachedText(attachment)
  if (text !== undefined) return { type: 'text', text }
  throw runtimeAErrors.unsupportedAttachment({
    message: `runtime_a takes images (PNG, JPEG, GIF, WebP), PDF and text, not ${mediaType}.`,
  })
}
