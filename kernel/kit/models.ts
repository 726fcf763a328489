import type { LanguageModelV4, LanguageModelV4CallOptions, LanguageModelV4StreamPart } from '@ai-sdk/provider'
import type { Static, TObject } from '@sinclair/typebox'
import {
  type DirectModel,
  ModelEgress,
  type ModelPart,
  type ModelParts,
  type ModelProvider,
  type ModelProviderContext,
  Models,
  type OpenModel,
} from '#contracts/model'
import type { ErrorTable } from '../contracts/errors.ts'
import { type Capability, definePlugin, maybe, type Plugin } from '../plugin.ts'
import { createModelConnections, postBy } from './model-fetch.ts'

// For model providers and for the code that calls models: connections, the cheapest call, and the plugin around a provider.
export { createModelConnections, type ModelConnections, postBy } from './model-fetch.ts'

export function defineModelProvider<C extends TObject>(spec: {
  readonly name: string
  readonly config?: C
  readonly errors?: ErrorTable
  /** Undefined: not configured (e.g. no API key); the provider is then absent from the role. */
  create(config: Static<C>, ctx: ModelProviderContext): Promise<ModelProvider | undefined>
}): Plugin {
  return definePlugin<TObject, { egress: Capability<ModelEgress, 'maybe'> }, { models: typeof Models }>({
    name: `model-${spec.name}`,
    ...(spec.config ? { config: spec.config } : {}),
    ...(spec.errors ? { errors: spec.errors } : {}),
    requires: { egress: maybe(ModelEgress) },
    provides: { models: Models },
    async setup(ctx) {
      const { egress } = ctx.deps
      const connections = createModelConnections()
      ctx.onStop(connections.close)
      const provider = await spec.create(ctx.config as Static<C>, {
        fetch: connections.fetch,
        post: egress ? postBy(egress.fetch) : connections.post,
        egress: egress && { baseUrl: egress.baseUrl(spec.name), fetch: egress.fetch },
        onStop: (fn) => ctx.onStop(fn),
      })
      return { models: provider ? { [spec.name]: provider } : {} }
    },
  })
}

/** The cheapest way to call a model that the model offers. */
export function openerOf(model: LanguageModelV4): OpenModel {
  return 'doOpen' in model ? (model as DirectModel).doOpen.bind(model) : (options) => openStream(model, options)
}

async function openStream(model: LanguageModelV4, options: LanguageModelV4CallOptions): Promise<ModelParts> {
  const { stream } = await model.doStream(options)
  const reader = stream.getReader()
  const { abortSignal } = options
  // Cancelling the reader also ends the call of a provider that does not watch the signal.
  const close = (): void => {
    abortSignal?.removeEventListener('abort', close)
    reader.cancel().catch(() => {})
  }
  abortSignal?.addEventListener('abort', close, { once: true })
  return {
    async next() {
      const { done, value } = await reader.read()
      return done ? undefined : [value]
    },
    close,
  }
}

/** The parts of the provider specification that a part of ours stands for. */
export const streamPartsOf = (part: ModelPart): readonly LanguageModelV4StreamPart[] =>
  part.type === 'text-deltas' ? part.deltas.map((delta) => ({ type: 'text-delta', id: part.id, delta })) : [part]

/** Parts as `doStream` gives them: one by one, and none after an abort. */
export function streamOf(
  parts: ModelParts,
  { abortSignal }: Pick<LanguageModelV4CallOptions, 'abortSignal'>,
): ReadableStream<LanguageModelV4StreamPart> {
  let held: readonly LanguageModelV4StreamPart[] | undefined = []
  let at = 0
  return new ReadableStream(
    {
      async pull(controller) {
        abortSignal?.throwIfAborted()
        if (at === held?.length) {
          held = (await parts.next())?.flatMap(streamPartsOf)
          at = 0
        }
        if (held) controller.enqueue(held[at++]!)
        else controller.close()
      },
      cancel: () => parts.close(),
    },
    { highWaterMark: 0 },
  )
}
