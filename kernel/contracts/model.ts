import type { LanguageModelV4 } from '@ai-sdk/provider'
import type { Static, TObject } from '@sinclair/typebox'
import { definePlugin, type Plugin, slot } from '#kernel'

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

export function defineModelProvider<C extends TObject>(spec: {
  readonly name: string
  readonly config?: C
  /** Undefined: not configured (e.g. no API key); the provider is then absent from the role. */
  create(config: Static<C>): Promise<ModelProvider | undefined>
}): Plugin {
  return definePlugin<TObject, Record<never, never>, { models: typeof Models }>({
    name: `model-${spec.name}`,
    ...(spec.config ? { config: spec.config } : {}),
    provides: { models: Models },
    async setup(ctx) {
      const provider = await spec.create(ctx.config as Static<C>)
      return { models: provider ? { [spec.name]: provider } : {} }
    },
  })
}
