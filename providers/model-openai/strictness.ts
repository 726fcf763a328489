import type { LanguageModelV4, LanguageModelV4CallOptions } from '@ai-sdk/provider'

/** What a schema may say for a model to be held to it word by word; with anything else the vendor refuses the request. */
const strictWords: ReadonlySet<string> = new Set([
  'type',
  'properties',
  'required',
  'additionalProperties',
  'items',
  'enum',
  'const',
  'anyOf',
  '$ref',
  '$defs',
  'title',
  'description',
])

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
  const strictJsonSchema = responseFormat.schema.type === 'object' && isStrict(responseFormat.schema)
  return {
    ...options,
    providerOptions: { ...providerOptions, openai: { ...providerOptions?.['openai'], strictJsonSchema } },
  }
}

/** Every object lists all of its properties, requires each and allows no other. */
function isStrict(schema: unknown): boolean {
  if (typeof schema !== 'object' || schema === null || Array.isArray(schema)) return false
  if (Object.keys(schema).some((word) => !strictWords.has(word))) return false
  const {
    type,
    properties = {},
    required = [],
    additionalProperties,
    items,
    anyOf = [],
    $defs = {},
  } = schema as {
    readonly type?: unknown
    readonly properties?: Readonly<Record<string, unknown>>
    readonly required?: readonly string[]
    readonly additionalProperties?: unknown
    readonly items?: unknown
    readonly anyOf?: readonly unknown[]
    readonly $defs?: Readonly<Record<string, unknown>>
  }
  const isObject = type === 'object' || Object.keys(properties).length > 0
  if (isObject && additionalProperties !== false) return false
  if (Object.keys(properties).some((name) => !required.includes(name))) return false
  const inner = [
    ...Object.values(properties),
    ...Object.values($defs),
    ...anyOf,
    ...(items === undefined ? [] : [items]),
  ]
  return inner.every(isStrict)
}
