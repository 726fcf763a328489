import type { LanguageModelV4 } from '@ai-sdk/provider'
import type { Static, TObject } from '@sinclair/typebox'
import { type Capability, definePlugin, maybe, type Plugin, slot } from '#kernel'
import { createModelConnections, type ModelFetch } from './model-fetch.ts'
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

/** Keyed by the provider name that a profile's `model` starts with. */
export const Models = slot<ModelProvider>('sidecar.models')

export interface ModelProviderContext {
  /** Keep-alive connections to model servers, closed when the role stops: pass it to the provider package. */
  readonly fetch: ModelFetch
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
        egress: egress && { baseUrl: egress.baseUrl(spec.name), fetch: egress.fetch },
        onStop: (fn) => ctx.onStop(fn),
      })
      return { models: provider ? { [spec.name]: provider } : {} }
    },
  })
}
