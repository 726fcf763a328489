import { OpenAICompatibleChatLanguageModel } from '@ai-sdk/openai-compatible'
import { randomUUID } from 'node:crypto'
import { APICallError, type LanguageModelV4CallOptions } from '@ai-sdk/provider'
import type { DirectModel, ModelParts } from '#contracts/model'
import { streamOf } from '#kit/models'
import type { ModelAnswer, ModelFetch, ModelPost } from '#contracts/model'
import { decodeBase64 } from '#contracts/prompt'
import { isStrictSchema } from '#contracts/strict-schema'
import { type AnswerReader, createAnswers } from './answer.ts'

interface ChatServer {
  /** The part of the address before /chat/completions. */
  readonly baseUrl: string
  readonly headers: Readonly<Record<string, string>>
  readonly fetch: ModelFetch
  readonly post: ModelPost
}

/** How many bytes of an error answer's body are kept. */
const maxRefusalBytes = 65_536

/**
 * The models of one server. The package makes the requests and reads unstreamed answers. Streamed answers are read here, because in the package
 * each passes four web streams and each delta a schema. Measured: docs/adr/0005.
 */
export function createChatModels(server: ChatServer): (modelId: string) => DirectModel {
  const url = `${server.baseUrl.replace(/\/$/, '')}/chat/completions`
  const headers = { 'content-type': 'application/json', ...server.headers }
  const call = { url: new URL(url), headers, post: server.post, readerOf: createAnswers() }
  return (modelId) => {
    const packaged = new OpenAICompatibleChatLanguageModel(modelId, {
      provider: 'openai.chat',
      url: () => url,
      headers: () => ({ ...server.headers }),
      fetch: server.fetch,
      supportsStructuredOutputs: true,
    })
    const doOpen = async (options: LanguageModelV4CallOptions): Promise<ModelParts> => {
      const files = new LargeFiles()
      const light = await packaged.prepareRequest(files.cutFrom(marked(options)))
      const { warnings } = light
      const asked = files.putInto(written(light.body)) ?? [
        written((await packaged.prepareRequest(marked(options))).body),
      ]
      const answer = await send(call, asked, options)
      return partsOf(answer, call.readerOf(warnings), url)
    }
    return {
      specificationVersion: 'v4',
      provider: 'openai.chat',
      modelId,
      supportedUrls: {},
      doGenerate: (options) => packaged.doGenerate(marked(options)),
      doOpen,
      async doStream(options) {
        return { stream: streamOf(await doOpen(options), options) }
      },
    }
  }
}

const written = (body: object): string =>
  JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } })

/**
 * Base64 of more characters is inserted into the request unescaped. Base64 needs no escaping, and escaping it character by character would block
 * the event loop.
 */
const largeChars = 64 * 1024

/** The large files of one request. Placeholders stand for them while the request is serialized as JSON. */
class LargeFiles {
  readonly #contents: string[] = []
  #mark = ''

  cutFrom(options: LanguageModelV4CallOptions): LanguageModelV4CallOptions {
    if (!options.prompt.some(({ role, content }) => role === 'user' && content.some(largeOf))) return options
    this.#mark = randomUUID()
    const prompt = options.prompt.map((message) =>
      message.role === 'user' ? { ...message, content: message.content.map((part) => this.#cut(part)) } : message,
    )
    return { ...options, prompt }
  }
  /** Undefined: the package did not pass the files on unchanged. */
  putInto(json: string): string[] | undefined {
    if (this.#contents.length === 0) return [json]
    const [first, ...rest] = json.split(this.#mark)
    if (rest.length !== this.#contents.length) return undefined
    return [first!, ...rest.flatMap((part, i) => [this.#contents[i]!, part])]
  }

  #cut(part: UserPart): UserPart {
    const content = largeOf(part)
    // Only base64 can be inserted without escaping.
    if (part.type !== 'file' || content === undefined || !decodeBase64(content)) return part
    this.#contents.push(content)
    return { ...part, data: { type: 'data', data: this.#mark } }
  }
}
type UserPart = Extract<LanguageModelV4CallOptions['prompt'][number], { role: 'user' }>['content'][number]

function largeOf(part: UserPart): string | undefined {
  const data = part.type === 'file' && part.data.type === 'data' ? part.data.data : undefined
  return typeof data === 'string' && data.length > largeChars ? data : undefined
}

/** Marks an answer's schema as strict only if the vendor accepts it as strict. */
function marked(options: LanguageModelV4CallOptions): LanguageModelV4CallOptions {
  const { responseFormat, providerOptions } = options
  if (responseFormat?.type !== 'json' || !responseFormat.schema) return options
  const strictJsonSchema = isStrictSchema(responseFormat.schema)
  return {
    ...options,
    providerOptions: { ...providerOptions, openai: { ...providerOptions?.['openai'], strictJsonSchema } },
  }
}

interface Call {
  readonly url: URL
  readonly headers: Readonly<Record<string, string>>
  readonly post: ModelPost
}

/** Resolves with an answer that is a stream. Rejects with an APICallError, or with the AbortError of the signal. */
async function send(
  { url, headers, post }: Call,
  body: readonly string[],
  { headers: more, abortSignal: signal }: LanguageModelV4CallOptions,
): Promise<ModelAnswer> {
  let answer: ModelAnswer
  try {
    answer = await post(url, { headers: more ? { ...headers, ...present(more) } : headers, body, signal })
  } catch (cause) {
    throw broken(cause, url.href, 'The model server cannot be reached.')
  }
  if (answer.status >= 200 && answer.status < 300) return answer
  const responseBody = await textOf(answer).catch(() => '')
  const data = parsed(responseBody)
  const said = (data as { error?: { message?: unknown } } | undefined)?.error?.message
  throw new APICallError({
    message: typeof said === 'string' ? said : `status ${answer.status}`,
    url: url.href,
    requestBodyValues: {},
    statusCode: answer.status,
    responseHeaders: { ...answer.headers },
    responseBody,
    data,
  })
}

const present = (headers: Readonly<Record<string, string | undefined>>): Record<string, string> =>
  Object.fromEntries(Object.entries(headers).filter((line): line is [string, string] => line[1] !== undefined))

/** The most bytes of a streamed answer, twice what the longest answers have: reasoning, arguments of tools and unfinished frames are kept as a whole. */
const mostAnswerBytes = 64 * 1024 * 1024

/** The parts of a streamed answer. */
function partsOf(answer: ModelAnswer, reader: AnswerReader, url: string): ModelParts {
  let over = false
  let bytes = 0
  return {
    async next() {
      while (!over) {
        let arrived: Awaited<ReturnType<ModelAnswer['read']>>
        // No `catch` on the promise: thousands of streams wait for their next word, so what each wait holds is kept small.
        try {
          arrived = await answer.read()
        } catch (cause) {
          throw broken(cause, url, 'The connection to the model server broke.', answer.status)
        }
        for (const { length } of arrived ?? []) bytes += length
        if (bytes > mostAnswerBytes) throw broken(undefined, url, 'The answer of the model server does not end.')
        over = arrived === undefined
        const parts = arrived ? reader.read(arrived) : reader.end()
        if (parts.length > 0) return parts
      }
      return undefined
    },
    close: answer.close.bind(answer),
  }
}

/** Error codes of broken connections. The same call may work a moment later. */
const passing: ReadonlySet<unknown> = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ETIMEDOUT',
  'UND_ERR_SOCKET',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
  'UND_ERR_BODY_TIMEOUT',
])

/** `status` is given when the answer had begun. */
function broken(cause: unknown, url: string, message: string, status?: number): unknown {
  if (cause instanceof Error && cause.name === 'AbortError') return cause
  const { code, cause: inner } = (cause ?? {}) as { code?: unknown; cause?: { code?: unknown } }
  return new APICallError({
    message,
    url,
    requestBodyValues: {},
    ...(status === undefined ? {} : { statusCode: status }),
    cause,
    isRetryable: passing.has(code) || passing.has(inner?.code),
  })
}

async function textOf(answer: ModelAnswer): Promise<string> {
  const chunks: Uint8Array[] = []
  let bytes = 0
  for (let arrived = await answer.read(); arrived && bytes < maxRefusalBytes; arrived = await answer.read()) {
    for (const chunk of arrived) bytes += chunks[chunks.push(chunk) - 1]!.length
  }
  answer.close()
  return Buffer.concat(chunks).toString('utf8', 0, maxRefusalBytes)
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}
