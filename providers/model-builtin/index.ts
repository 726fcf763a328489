import type {
  LanguageModelV4CallOptions,
  LanguageModelV4FinishReason,
  LanguageModelV4StreamPart,
  LanguageModelV4Usage,
} from '@ai-sdk/provider'
import { errorTable } from '#kernel'
import type { DirectModel, ModelParts } from '#contracts/model'
import { defineModelProvider, streamOf } from '#kit/models'
import { lastOf, respond, type Response } from './rules.ts'

const builtinErrors = errorTable('model-builtin', {
  unknownModel: { status: 400, message: `The provider 'builtin' has only the model demo.` },
})

/** `builtin/demo`: answers by rules, so that a fresh installation works without any key. Its answers say that they come from rules. */
export default defineModelProvider({
  name: 'builtin',
  errors: builtinErrors,
  async create() {
    const demo = demoModel()
    return {
      contract: 'model/1',
      model(modelId) {
        if (modelId === 'demo') return demo
        throw builtinErrors.unknownModel()
      },
    }
  },
})

/** The demo responder as a language model: word by word, deterministic, one token per word. */
export function demoModel(): DirectModel {
  return {
    specificationVersion: 'v4',
    provider: 'builtin',
    modelId: 'demo',
    supportedUrls: {},
    async doGenerate(options) {
      const { response, words, finishReason, usage } = turn(options)
      return {
        content: [...(words.length > 0 ? [{ type: 'text' as const, text: words.join('') }] : []), ...calls(response)],
        finishReason,
        usage,
        warnings: [],
      }
    },
    doOpen,
    async doStream(options) {
      return { stream: streamOf(await doOpen(options), options) }
    },
  }
}

/** How many parts of an answer are returned together. */
const atOnce = 256

async function doOpen(options: LanguageModelV4CallOptions): Promise<ModelParts> {
  const parts = partsOf(options)
  return {
    async next() {
      options.abortSignal?.throwIfAborted()
      const some: LanguageModelV4StreamPart[] = []
      while (some.length < atOnce) {
        const { done, value } = parts.next()
        if (done) break
        some.push(value)
      }
      return some.length > 0 ? some : undefined
    },
    close: () => void parts.return(),
  }
}

function* partsOf(options: LanguageModelV4CallOptions): Generator<LanguageModelV4StreamPart, void> {
  const { response, words, finishReason, usage } = turn(options)
  yield { type: 'stream-start', warnings: [] }
  if (words.length > 0) {
    yield { type: 'text-start', id: 'text' }
    for (const delta of words) yield { type: 'text-delta', id: 'text', delta }
    yield { type: 'text-end', id: 'text' }
  }
  yield* calls(response)
  yield { type: 'finish', finishReason, usage }
}

function turn(options: LanguageModelV4CallOptions) {
  const response = inForm(respond(options.prompt, options.tools ?? []), options)
  const all = wordsOf(response.text)
  const limit = options.maxOutputTokens ?? Number.POSITIVE_INFINITY
  const words = all.slice(0, limit)
  const unified = all.length > limit ? 'length' : response.calls.length > 0 ? 'tool-calls' : 'stop'
  const finishReason: LanguageModelV4FinishReason = { unified, raw: undefined }
  return { response, words, finishReason, usage: usage(options, words.length) }
}

/** An answer in the requested JSON form. If the form contains a text, that text still says that the answer comes from rules. */
function inForm(response: Response, { responseFormat, prompt }: LanguageModelV4CallOptions): Response {
  if (responseFormat?.type !== 'json' || response.calls.length > 0) return response
  const value = sampleOf(responseFormat.schema ?? { type: 'object' }, response.text, lastOf(prompt))
  return { ...response, text: JSON.stringify(value) }
}

const calls = (response: Response) =>
  response.calls.map((call) => ({
    type: 'tool-call' as const,
    toolCallId: call.id,
    toolName: call.name,
    input: JSON.stringify(call.input),
  }))

const wordsOf = (text: string): string[] => text.match(/\S+\s*/g) ?? []

function usage(options: LanguageModelV4CallOptions, output: number): LanguageModelV4Usage {
  const input = options.prompt.reduce((sum, { content }) => {
    const texts = typeof content === 'string' ? [content] : content.map((part) => ('text' in part ? part.text : ''))
    return sum + texts.reduce((words, text) => words + wordsOf(text).length, 0)
  }, 0)
  return {
    inputTokens: { total: input, noCache: input, cacheRead: 0, cacheWrite: 0 },
    outputTokens: { total: output, text: output, reasoning: 0 },
  }
}

/** The parts of a JSON Schema that the rules follow; others may be violated. */
interface Schema {
  readonly type?: string | readonly string[]
  readonly const?: unknown
  readonly enum?: readonly unknown[]
  readonly default?: unknown
  readonly properties?: Readonly<Record<string, Schema>>
  readonly items?: Schema
  readonly minItems?: number
  readonly anyOf?: readonly Schema[]
  readonly oneOf?: readonly Schema[]
  readonly allOf?: readonly Schema[]
  readonly $ref?: string
  readonly $defs?: Readonly<Record<string, Schema>>
  readonly definitions?: Readonly<Record<string, Schema>>
  readonly format?: string
  readonly minLength?: number
  readonly maxLength?: number
  readonly minimum?: number
  readonly maximum?: number
}

/** Nesting is bounded, because a schema may refer to itself. */
const maxDepth = 8
/** Values of an answer, and characters of them and of their names. The schema is a tenant's, and all runs of the process wait while the answer is made. */
const mostValues = 1_000
const mostChars = 256 * 1024

const formats: Readonly<Record<string, string>> = {
  'date-time': '2026-01-01T00:00:00Z',
  date: '2026-01-01',
  time: '00:00:00Z',
  email: 'demo@example.com',
  uri: 'https://example.com/',
  uuid: '00000000-0000-4000-8000-000000000000',
}

/** A value that fits a schema. Texts are `said`, numbers are the first number in the question. */
function sampleOf(root: unknown, said: string, question: string): unknown {
  const number = Number(/-?\d+(?:\.\d+)?/.exec(question)?.[0] ?? 0)
  let [values, chars] = [0, 0]
  const isSpent = (): boolean => values > mostValues || chars > mostChars
  const given = (value: unknown): unknown => {
    chars += JSON.stringify(value)?.length ?? 0
    return chars > mostChars ? null : value
  }
  const sample = (schema: Schema, depth: number): unknown => {
    values++
    chars += schema.$ref?.length ?? 0
    if (depth > maxDepth || isSpent()) return null
    if ('const' in schema) return given(schema.const)
    if (schema.enum) return given(schema.enum[0])
    if ('default' in schema) return given(schema.default)
    const other = schema.$ref === undefined ? (schema.anyOf ?? schema.oneOf)?.[0] : named(root as Schema, schema.$ref)
    if (other) return sample(other, depth + 1)
    if (schema.allOf) {
      // What is looked at counts like a value, because it is looked at again for each.
      values += [schema, ...schema.allOf].reduce((sum, part) => sum + 1 + Object.keys(part).length, 0)
      if (isSpent()) return null
      return sample(Object.assign({}, schema, { allOf: undefined }, ...schema.allOf), depth + 1)
    }
    const type = typeof schema.type === 'string' ? schema.type : schema.type?.find((one) => one !== 'null')
    if (type === 'object' || schema.properties) {
      const members: [string, unknown][] = []
      for (const [name, member] of Object.entries(schema.properties ?? {})) {
        chars += name.length
        if (isSpent()) break
        members.push([name, sample(member, depth + 1)])
      }
      return Object.fromEntries(members)
    }
    if (type === 'array') {
      const items: unknown[] = []
      while (items.length < (schema.minItems ?? 1) && !isSpent()) items.push(sample(schema.items ?? {}, depth + 1))
      return items
    }
    if (type === 'integer' || type === 'number') return within(schema, type === 'integer' ? Math.round(number) : number)
    if (type === 'boolean') return true
    if (type === 'null') return null
    const text = formats[schema.format ?? ''] ?? said
    return given(text.slice(0, schema.maxLength).padEnd(Math.min(schema.minLength ?? 0, mostChars), '.'))
  }
  return sample(root as Schema, 0)
}

const named = (root: Schema, reference: string): Schema | undefined => {
  const name = /^#\/(?:\$defs|definitions)\/([^/]+)$/.exec(reference)?.[1]
  return reference === '#' ? root : name === undefined ? {} : (root.$defs?.[name] ?? root.definitions?.[name] ?? {})
}

const within = ({ minimum = -Infinity, maximum = Infinity }: Schema, number: number): number =>
  Math.max(minimum, Math.min(maximum, number))
