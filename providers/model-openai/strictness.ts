import type { LanguageModelV4, LanguageModelV4CallOptions } from '@ai-sdk/provider'
import { isStrictSchema } from '#contracts/strict-schema'

/** The same model; a schema for its answer is marked as strict only where the vendor takes it so. */
export const withStrictness = (model: LanguageModelV4): LanguageModelV4 => ({
  specificationVersion: model.specificationVersion,
  provider: model.provider,
  modelId: model.modelId,
  supportedUrls: model.supportedUrls,
  doGenerate: (options) => model.doGenerate(marked(options)),
  doStream: (options) => model.doStream(marked(options)),
})

function marked(options: LanguageModelV4CallOptions): LanguageModelV4CallOptions {
  const { responseFormat, providerOptions } = options
  if (responseFormat?.type !== 'json' || !responseFormat.schema) return options
  const strictJsonSchema = isStrictSchema(responseFormat.schema)
  return {
    ...options,
    providerOptions: { ...providerOptions, openai: { ...providerOptions?.['openai'], strictJsonSchema } },
  }
}
