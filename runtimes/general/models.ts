import { APICallError, type LanguageModelV4CallOptions, type LanguageModelV4Usage } from '@ai-sdk/provider'
import type { ModelPart, ModelParts, ModelProvider, OpenModel } from '#contracts/model'
import { retry } from '#kit'
import { openerOf } from '#kit/models'
import type { GeneralConfig, ModelSettings } from './config.ts'
import { ModelFailure, modelFailure, reported, generalErrors } from './errors.ts'

/** The most models in the cache. Profiles choose model ids freely, so the cache is emptied at this size. */
const maxCached = 1_000

/** The model behind a profile's `model`. */
export interface Model {
  readonly open: OpenModel
  readonly settings: ModelSettings & { readonly contextTokens: number }
}

/** Finds the model of `provider/modelId`. Model objects are stateless and shared. Throws AppError `unknown_model`. */
export function createCatalog(
  providers: ReadonlyMap<string, ModelProvider>,
  config: Pick<GeneralConfig, 'contextTokens' | 'models'>,
): (name: string) => Model {
  const settingsOf = createSettings(config)
  const cached = new Map<string, Model>()
  return (name) => {
    const known = cached.get(name)
    if (known) return known
    const slash = name.indexOf('/')
    const provider = slash < 0 ? undefined : providers.get(name.slice(0, slash))
    if (!provider) throw generalErrors.unknownModel({ message: sentence(name, [...providers.keys()]) })
    const model = { open: openerOf(provider.model(name.slice(slash + 1))), settings: settingsOf(name) }
    if (cached.size >= maxCached) cached.clear()
    cached.set(name, model)
    return model
  }
}

function createSettings({ contextTokens: usual, models }: Pick<GeneralConfig, 'contextTokens' | 'models'>) {
  const lines = Object.entries(models)
    .map(([pattern, settings]) => {
      const open = pattern.endsWith('*')
      return { open, name: open ? pattern.slice(0, -1) : pattern, settings }
    })
    // The longest name first; of two equally long names, the exact one.
    .sort((a, b) => b.name.length - a.name.length || Number(a.open) - Number(b.open))
  return (model: string): Model['settings'] => {
    const line = lines.find(({ name, open }) => (open ? model.startsWith(name) : model === name))
    return { ...line?.settings, contextTokens: line?.settings.contextTokens ?? usual }
  }
}

const sentence = (name: string, providers: readonly string[]): string =>
  `No model provider serves '${name}'; configured: ${providers.toSorted().join(', ') || 'none'}. A model is written provider/model.`

/** A model call whose first meaningful part has arrived. */
export interface OpenCall {
  /** The first meaningful part and the parts that arrived with it. Undefined when the answer ended without a meaningful part. */
  readonly first: readonly ModelPart[] | undefined
  readonly rest: ModelParts
}

const waits = { firstMs: 200, factor: 4, longestMs: 800, most: 2 }
/** Milliseconds. The longest `Retry-After` that is respected, because a user is waiting. */
const maxRetryAfterMs = 5_000

/**
 * Calls the model, and retries at most twice after a temporary failure. It retries only while nothing was streamed, because text that a client has
 * seen cannot be taken back.
 */
export async function openCall(
  model: OpenModel,
  options: LanguageModelV4CallOptions,
  signal: AbortSignal,
): Promise<OpenCall> {
  const attempt = async (): Promise<OpenCall> => {
    let rest: ModelParts | undefined
    try {
      rest = await model(options)
      let first = await rest.next()
      while (first && !first.some(isMeaningful)) first = await rest.next()
      const begin = first?.find(isMeaningful)
      if (begin?.type === 'error') throw reported(begin.error)
      return { first, rest }
    } catch (error) {
      rest?.close()
      throw modelFailure(error)
    }
  }
  const mayPass = (failure: unknown): boolean | number =>
    failure instanceof ModelFailure && failure.transient && retryAfter(failure.cause)
  return retry(attempt, { ...waits, signal, mayPass })
}

/** False for parts that only announce something. A reasoning part may have no text and only a signature. */
function isMeaningful(part: ModelPart): boolean {
  if (part.type === 'text-delta') return part.delta !== ''
  return meaningful.has(part.type)
}
const meaningful: ReadonlySet<string> = new Set([
  'text-deltas',
  'error',
  'finish',
  'tool-call',
  'reasoning-start',
  'reasoning-delta',
])

function retryAfter(error: unknown): number {
  const seconds = APICallError.isInstance(error) ? Number(error.responseHeaders?.['retry-after']) : 0
  return seconds > 0 ? Math.min(seconds * 1_000, maxRetryAfterMs) : 0
}

interface CallUsage {
  readonly inputTokens: number
  readonly outputTokens: number
  readonly cachedTokens?: number
}

/** The tokens of one model call. The cost is not known here. */
export function usageOf({ inputTokens, outputTokens }: LanguageModelV4Usage): CallUsage {
  const cached = count(inputTokens.cacheRead)
  return {
    inputTokens: count(inputTokens.total),
    outputTokens: count(outputTokens.total),
    ...(cached > 0 ? { cachedTokens: cached } : {}),
  }
}

/** Servers omit some counts and send others that are invalid. */
const count = (tokens: number | undefined): number =>
  tokens !== undefined && Number.isFinite(tokens) && tokens > 0 ? Math.round(tokens) : 0
