import type { LanguageModelV4, LanguageModelV4StreamPart } from '@ai-sdk/provider'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { RuntimeEvent } from '#contracts/run-event'
import type { RuntimeContext } from '#contracts/runtime'
import { createCallIds, execute, type PendingCall, pendingCall } from './calls.ts'
import { errorEvent, maxStepsReached, ModelFailure, modelFailure, reported } from './errors.ts'
import type { History } from './history.ts'
import type { Message } from './messages.ts'
import { openCall } from './model-call.ts'
import { paragraph, replayInto } from './replay.ts'
import type { SessionTools } from './tools.ts'
import { type OpenTurn, openTurn } from './turn.ts'
import { usageOf } from './usage.ts'

export interface StepDeps {
  readonly history: History
  readonly log: RuntimeContext<unknown>['log']
  /** Throws AppError `unknown_model`. */
  modelOf(name: string): LanguageModelV4
  /** Throws AppError `tool_server_unavailable`. */
  connect(url: string, token: string | undefined): Promise<SessionTools>
}

/** Model calls of one run unless the profile says otherwise. */
const defaultMaxSteps = 16

/**
 * One run: the model is called, its tool calls are executed and their results given back, until it answers without a
 * call. The loop sits on the provider's `doStream`: `streamText` of the same library costs three times the CPU per delta
 * and resolves after an in-band failure, where the commit-once rule of specification 4.23 needs to know.
 */
export async function* runSteps(
  envelope: RunEnvelope,
  signal: AbortSignal,
  deps: StepDeps,
): AsyncGenerator<RuntimeEvent> {
  const { runId, sessionId, profile, replay = [] } = envelope
  if ((envelope.attempt ?? 1) > 1) deps.history.withdraw(sessionId, runId)
  const turn = openTurn(deps.history, sessionId, runId, envelope.prompt)
  const callId = createCallIds(replay.flatMap((event) => (event.type === 'tool_call' ? [event.id] : [])))
  let tools: SessionTools | undefined
  let terminal: RuntimeEvent | undefined
  try {
    if (envelope.runtimeSessionId !== sessionId) yield { type: 'session_init', runtimeSessionId: sessionId }
    const model = deps.modelOf(profile.model)
    if (envelope.sessionMcpUrl !== undefined) {
      tools = await deps.connect(envelope.sessionMcpUrl, envelope.sessionMcpToken)
    }
    const before: Message[] = [...deps.history.messages(sessionId)]
    const maxSteps = profile.limits.maxSteps ?? defaultMaxSteps
    const { steps, open, answer: said } = replayInto(turn, replay)
    let answer = said
    if (open.length > 0) yield* executeAll(tools, open, turn)
    for (let step = steps + 1; ; step++) {
      const calls: PendingCall[] = []
      let finish: Extract<LanguageModelV4StreamPart, { type: 'finish' }> | undefined
      const call = await openCall(model, request(envelope, before, turn.messages, tools, signal), signal)
      try {
        for (let part = call.first; part !== undefined; part = (await call.reader.read()).value) {
          if (part.type === 'text-delta') {
            if (part.delta === '') continue
            const text = answer !== '' && turn.text === '' ? paragraph + part.delta : part.delta
            turn.text += part.delta
            answer += text
            yield { type: 'assistant', text, delta: true }
          } else if (part.type === 'tool-call') calls.push(pendingCall(part, callId(part.toolCallId)))
          else if (part.type === 'finish') finish = part
          else if (part.type === 'error') throw reported(part.error)
        }
      } catch (error) {
        throw modelFailure(error)
      } finally {
        call.close()
      }
      if (finish === undefined || finish.finishReason.unified === 'error') {
        throw new ModelFailure('The model server ended its answer early.', { retryable: true })
      }
      // At once: of a run that dies, what its finished model calls used is still known.
      yield { type: 'usage', ...usageOf(finish.usage), model: profile.model }
      if (calls.length === 0) {
        terminal = { type: 'result', text: answer, finishReason: finish.finishReason.unified }
        break
      }
      if (step >= maxSteps) {
        throw maxStepsReached({ message: `The run reached its limit of ${maxSteps} model calls before an answer.` })
      }
      turn.says(calls.map(({ part }) => part))
      for (const { part, shown } of calls) {
        yield { type: 'tool_call', id: part.toolCallId, name: part.toolName, arguments: shown }
      }
      yield* executeAll(tools, calls, turn)
    }
  } catch (error) {
    // The last event of an aborted run is the host's, which knows why.
    if (!signal.aborted) terminal = errorEvent(error, (details) => deps.log.warn({ runId, ...details }, 'run failed'))
  } finally {
    // Before the terminal event, and also when the host stops reading: the next run must find what this one said.
    turn.commit()
    void tools?.close().catch(() => {})
  }
  if (terminal) yield terminal
}

/** All at once; their results in the order of the calls. */
async function* executeAll(
  tools: SessionTools | undefined,
  calls: readonly PendingCall[],
  turn: OpenTurn,
): AsyncGenerator<RuntimeEvent> {
  const outcomes = calls.map((pending) => execute(tools, pending))
  for (const [index, { part }] of calls.entries()) {
    const { ok, content } = await outcomes[index]!
    turn.hears(part, ok, content)
    yield { type: 'tool_result', id: part.toolCallId, name: part.toolName, ok, content }
  }
}

const request = (
  envelope: RunEnvelope,
  before: readonly Message[],
  turn: readonly Message[],
  tools: SessionTools | undefined,
  abortSignal: AbortSignal,
) => {
  const { instructions, limits } = envelope.profile
  return {
    prompt: [...(instructions === '' ? [] : [{ role: 'system' as const, content: instructions }]), ...before, ...turn],
    abortSignal,
    ...(tools && tools.specs.length > 0 ? { tools: tools.specs } : {}),
    ...(limits.maxOutputTokens === undefined ? {} : { maxOutputTokens: limits.maxOutputTokens }),
  }
}
