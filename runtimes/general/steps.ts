import type { LanguageModelV4, LanguageModelV4StreamPart } from '@ai-sdk/provider'
import type { ResponseFormat } from '#contracts/prompt'
import type { RunEnvelope } from '#contracts/run-envelope'
import type { RuntimeEvent } from '#contracts/run-event'
import type { RuntimeContext } from '#contracts/runtime'
import { createCallIds, type PendingCall, pendingCall } from './calls.ts'
import type { SettingsOf } from './config.ts'
import { createContext } from './context.ts'
import { errorEvent, invalidOutput, maxStepsReached, ModelFailure, modelFailure, reported } from './errors.ts'
import { executeAll } from './execute.ts'
import type { History } from './history.ts'
import type { OutputForm } from './output.ts'
import { createReasoning } from './reasoning.ts'
import { paragraph, replayInto } from './replay.ts'
import { openStep } from './step.ts'
import type { Connected } from './tools/connect.ts'
import type { ToolSet } from './tools/toolset.ts'
import { openTurn } from './turn.ts'
import { usageOf } from './usage.ts'

export interface StepDeps {
  readonly history: History
  readonly log: RuntimeContext<unknown>['log']
  readonly settingsOf: SettingsOf
  readonly reasoningEvents: boolean
  /** Throws AppError `unknown_model`. */
  modelOf(name: string): LanguageModelV4
  /** Throws AppError `tool_server_unavailable`. Undefined: the run has no tools. */
  connect(envelope: RunEnvelope): Promise<Connected | undefined>
  /** Throws AppError `invalid_response_format`. */
  formOf(format: ResponseFormat): OutputForm
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
  const { runId, sessionId, profile, responseFormat, replay = [] } = envelope
  if ((envelope.attempt ?? 1) > 1) deps.history.withdraw(sessionId, runId)
  const turn = openTurn(deps.history, envelope)
  const callId = createCallIds(replay.flatMap((event) => (event.type === 'tool_call' ? [event.id] : [])))
  let tools: ToolSet | undefined
  let terminal: RuntimeEvent | undefined
  try {
    if (envelope.runtimeSessionId !== sessionId) yield { type: 'session_init', runtimeSessionId: sessionId }
    const model = deps.modelOf(profile.model)
    const settings = deps.settingsOf(profile.model)
    const form = responseFormat && deps.formOf(responseFormat)
    const connected = await deps.connect(envelope)
    tools = connected?.tools
    for (const one of connected?.unavailable ?? []) {
      deps.log.warn({ runId, ...one }, 'a run goes without the tools of an MCP server')
      yield { type: 'progress', stage: 'mcp_server_unavailable', ...one }
    }
    const context = createContext(profile, settings.contextTokens, deps.history.turns(sessionId) ?? [])
    const reasoning = createReasoning(turn, deps.reasoningEvents)
    const maxSteps = profile.limits.maxSteps ?? defaultMaxSteps
    const { steps, open, answer: said } = replayInto(turn, replay)
    let answer = said
    let asksAgain = form !== undefined
    if (open.length > 0) yield* executeAll(tools, open, turn, settings)
    for (let step = steps + 1; ; step++) {
      const listing = tools?.refresh()
      if (listing) await listing
      const calls: PendingCall[] = []
      let finish: Extract<LanguageModelV4StreamPart, { type: 'finish' }> | undefined
      const call = yield* openStep({ model, profile, settings, form, context, turn, tools, signal })
      try {
        for (let part = call.first; part !== undefined; part = (await call.reader.read()).value) {
          if (part.type === 'text-delta') {
            if (part.delta === '') continue
            let text = part.delta
            if (turn.text === '') {
              const thought = reasoning.flush()
              if (thought) yield thought
              if (answer !== '') text = paragraph + text
            }
            turn.text += part.delta
            answer += text
            yield { type: 'assistant', text, delta: true }
          } else if (part.type === 'tool-call') calls.push(pendingCall(part, callId(part.toolCallId), tools))
          else if (part.type === 'finish') finish = part
          else if (part.type === 'error') throw reported(part.error)
          else {
            const thought = reasoning.take(part)
            if (thought) yield thought
          }
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
        const result = { type: 'result', text: answer, finishReason: finish.finishReason.unified } as const
        const read = form?.read(turn.text)
        // An answer to a complaint takes the place of what was complained about.
        turn.forgives()
        if (read === undefined || 'value' in read) {
          terminal = read ? { ...result, output: read.value } : result
          break
        }
        if (!asksAgain) throw invalidOutput({ message: 'The model gave no answer that fits the response format.' })
        asksAgain = false
        answer = ''
        turn.complains(read.problem)
        yield {
          type: 'progress',
          stage: 'output_invalid',
          supersedes: 1,
          message: 'The answer does not fit; the model is asked once more.',
        }
        continue
      }
      if (step >= maxSteps) {
        throw maxStepsReached({ message: `The run reached its limit of ${maxSteps} model calls before an answer.` })
      }
      turn.says(calls.map(({ part }) => part))
      for (const { part, name, shown } of calls) {
        yield { type: 'tool_call', id: part.toolCallId, name, arguments: shown }
      }
      yield* executeAll(tools, calls, turn, settings)
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
