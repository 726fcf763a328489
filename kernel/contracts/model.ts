import type { LanguageModelV4, LanguageModelV4CallOptions, LanguageModelV4StreamPart } from '@ai-sdk/provider'
import type { Static, TObject } from '@sinclair/typebox'
import { type Capability, definePlugin, maybe, type Plugin, slot } from '#kernel'
import { createModelConnections, type ModelFetch, type ModelPost, postBy } from './model-fetch.ts'
import { ModelEgress } from './workers.ts'

/**
 * A source of language models. The model contract is the AI SDK's provider specification v4, so every provider package
 * of that ecosystem fits behind one line.
 */
export interface ModelProvider {
  readonly contract: 'model/1'
  /** The model behind `provider/<modelId>`. Throws AppError 400 `unknown_model` for an id it does not serve. */
  model(modelId: string): LanguageModelV4
}

/** Deltas of one text that arrived together: as many `text-delta` parts, without an object for each. None is empty. */
export interface TextDeltas {
  readonly type: 'text-deltas'
  readonly id: string
  readonly deltas: readonly string[]
}
export type ModelPart = LanguageModelV4StreamPart | TextDeltas

/** The parts of one answer, as many together as have arrived: a reader that is slow holds up the model server. */
export interface ModelParts {
  /** At least one. Undefined at the end. Rejects with what cut the answer short, behind all parts that came before it. */
  next(): Promise<readonly ModelPart[] | undefined>
  /** Ends the call and its connection, wherever it is. Nothing when it is over. */
  close(): void
}

/** A model may offer its parts without a web stream around them, which costs more than a short answer itself. */
export interface DirectModel extends LanguageModelV4 {
  /** As `doStream`: the same parts, the same rejections; ends when `abortSignal` aborts. */
  doOpen(options: LanguageModelV4CallOptions): Promise<ModelParts>
}

/** One call of a model. */
export type OpenModel = DirectModel['doOpen']

/** The shortest way to call a model that it offers. */
export function openerOf(model: LanguageModelV4): OpenModel {
  return 'doOpen' in model ? (model as DirectModel).doOpen.bind(model) : (options) => openStream(model, options)
}

async function openStream(model: LanguageModelV4, options: LanguageModelV4CallOptions): Promise<ModelParts> {
  const { stream } = await model.doStream(options)
  const reader = stream.getReader()
  const { abortSignal } = options
  // Also for a provider that does not watch the signal itself: a cancelled reader ends at once.
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

/** What a part is in the provider specification. */
export const singly = (part: ModelPart): readonly LanguageModelV4StreamPart[] =>
  part.type === 'text-deltas' ? part.deltas.map((delta) => ({ type: 'text-delta', id: part.id, delta })) : [part]

/** Parts as `doStream` hands them out: one by one, and none behind an abort. */
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
          held = (await parts.next())?.flatMap(singly)
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

/** Keyed by the provider name that a profile's `model` starts with. */
export const Models = slot<ModelProvider>('sidecar.models')

export interface ModelProviderContext {
  /** Keep-alive connections to model servers, closed when the role stops: pass it to the provider package. */
  readonly fetch: ModelFetch
  /** For a provider that reads answers itself; in a sandbox worker it goes the way of `egress`. */
  readonly post: ModelPost
  /** Set in a sandbox worker: calls go to this address with this fetch, and the runner adds the key. */
  readonly egress: { readonly baseUrl: string; readonly fetch: ModelFetch } | undefined
  onStop(fn: () => Promise<void>): void
}

export function defineModelProvider<C extends TObject>(spec: {
  readonly name: string
  readonly config?: C
  /** Undefined: not configured (e.g. no API key); the provider is then absent from the role. */
  create(config: Static<C>, ctx: ModelProviderContext): Promise<ModelProvider | undefined>
}): Plugin {
  return definePlugin<TObject, { egress: Capability<ModelEgress, 'maybe'> }, { models: typeof Models }>({
    name: `model-${spec.name}`,
    ...(spec.config ? { config: spec.config } : {}),
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
