import type { LanguageModelV4, LanguageModelV4CallOptions } from '@ai-sdk/provider'
import type { Profile } from '#contracts/profiles'
import type { RuntimeEvent } from '#contracts/run-event'
import type { ModelSettings } from './config.ts'
import type { ContextWindow } from './context.ts'
import { ModelFailure } from './errors.ts'
import type { Message } from './messages.ts'
import { type OpenCall, openCall } from './model-call.ts'
import type { OutputForm } from './output.ts'
import type { ToolSet } from './tools/toolset.ts'
import type { OpenTurn } from './turn.ts'

export interface Step {
  readonly model: LanguageModelV4
  readonly profile: Profile
  readonly settings: ModelSettings
  readonly form: OutputForm | undefined
  readonly context: ContextWindow
  readonly turn: Pick<OpenTurn, 'messages'>
  readonly tools: Pick<ToolSet, 'specs'> | undefined
  readonly signal: AbortSignal
}

/** Calls the model with what fits its context; once more with less when its server says that it did not fit. */
export async function* openStep(step: Step): AsyncGenerator<RuntimeEvent, OpenCall> {
  const { model, context, turn, tools, signal } = step
  const { messages, event } = context.fit(turn.messages, tools?.specs)
  if (event) yield event
  try {
    return await openCall(model, request(step, messages), signal)
  } catch (error) {
    const less =
      error instanceof ModelFailure && error.tooLong ? context.fitHarder(turn.messages, tools?.specs) : undefined
    if (!less) throw error
    if (less.event) yield less.event
    return await openCall(model, request(step, less.messages), signal)
  }
}

function request({ profile, settings, form, tools, signal }: Step, messages: readonly Message[]) {
  const { instructions, limits } = profile
  const options: LanguageModelV4CallOptions = {
    prompt: [...(instructions === '' ? [] : [{ role: 'system' as const, content: instructions }]), ...messages],
    abortSignal: signal,
  }
  if (tools && tools.specs.length > 0) options.tools = tools.specs
  if (limits.maxOutputTokens !== undefined) options.maxOutputTokens = limits.maxOutputTokens
  if (form) options.responseFormat = form.asked
  if (settings.reasoning) options.reasoning = settings.reasoning
  return options
}
