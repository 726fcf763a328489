import type {
  LanguageModelV4CallOptions,
  LanguageModelV4FinishReason,
  LanguageModelV4StreamPart,
  LanguageModelV4Usage,
} from '@ai-sdk/provider'
import type { DirectModel, ModelParts } from '#contracts/model'
import { streamOf } from '#kit/models'
import { lastOf, respond, type Response } from './rules.ts'
import { sampleOf } from './sample.ts'

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

/** Parts handed out together. */
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

/** An answer in the form that is asked for. It still says what it is, wherever the form has room for a text. */
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
