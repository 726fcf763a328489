import type { FastifyBaseLogger } from 'fastify'
import type { OutputSchemas } from '#contracts/output-schema'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { RuntimeEvent } from '#contracts/run-event'
import type { Conversations } from './conversations.ts'
import { converse } from './converse.ts'
import { errorEvent, notInstalled } from './errors.ts'
import type { ModelServer } from './model-server.ts'
import { modelId } from './model-server.ts'
import { optionsOf } from './options.ts'
import { vendorProcess } from './process.ts'
import { promptBlocks } from './prompt.ts'
import type { Root } from './root.ts'
import { openScratch } from './scratch.ts'
import { toolServers } from './tool-servers.ts'
import { createTurn } from './turn.ts'
import type { Vendor } from './vendor.ts'

export interface RunDeps {
  readonly vendor: Vendor
  readonly conversations: Conversations
  readonly root: Root
  readonly schemas: OutputSchemas
  readonly log: Pick<FastifyBaseLogger, 'warn'>
  /** Throws AppError `unknown_model` when there is none. */
  server(): ModelServer
}

/** One run: a process of the vendor's that is started for it, and gone before its last event. */
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
    terminal = errorEvent(error)
    if (!signal.aborted)
      deps.log.warn({ runId, sessionId, code: terminal.code, reason: terminal.message }, 'run failed')
  }
  // The last event of an aborted run is the host's, which knows why.
  if (terminal && !signal.aborted) yield terminal
}

async function* answer(
  envelope: RunEnvelope,
  signal: AbortSignal,
  { vendor, conversations, root, schemas, server }: RunDeps,
): AsyncGenerator<RuntimeEvent, RuntimeEvent | undefined> {
  if (vendor.missing !== undefined) throw notInstalled({ message: vendor.missing })
  const prompt = promptBlocks(envelope)
  const tools = toolServers(envelope)
  const place = { model: modelId(envelope.profile.model), server: server() }
  const { query } = await vendor.load()
  const conversation = await conversations.begin(envelope)
  const scratch = await openScratch(root)
  const process = vendorProcess()
  const turn = createTurn(envelope, tools, schemas)
  const options = optionsOf(envelope, { ...place, conversation, scratch, tools, spawn: process.spawn })
  try {
    yield* converse((input) => query({ prompt: input, options }), prompt, turn, process, signal)
    return turn.result
  } finally {
    // Before the last event, and also when the host stops reading: the next run must find what this one said.
    await conversations.settle(envelope.sessionId, turn.spoke)
    await scratch.remove()
  }
}
