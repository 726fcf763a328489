import type { LanguageModelV4 } from '@ai-sdk/provider'
import type { ModelProvider } from '#contracts/model'
import { unknownModel } from './errors.ts'

/** Profiles choose model ids freely, so the cache is emptied at this size. */
const maxCached = 1_000

export interface ModelCatalog {
  /** The model behind `provider/modelId`. Throws AppError `unknown_model`. */
  find(name: string): LanguageModelV4
}

/** Model objects are stateless and shared by every run that names them. */
export function createCatalog(providers: ReadonlyMap<string, ModelProvider>): ModelCatalog {
  const cached = new Map<string, LanguageModelV4>()
  return {
    find(name) {
      const known = cached.get(name)
      if (known) return known
      const slash = name.indexOf('/')
      const provider = slash < 0 ? undefined : providers.get(name.slice(0, slash))
      if (!provider) throw unknownModel({ message: sentence(name, [...providers.keys()]) })
      const model = provider.model(name.slice(slash + 1))
      if (cached.size >= maxCached) cached.clear()
      cached.set(name, model)
      return model
    },
  }
}

const sentence = (name: string, providers: readonly string[]): string =>
  `No model provider serves '${name}'; configured: ${providers.toSorted().join(', ') || 'none'}. A model is written provider/model.`
