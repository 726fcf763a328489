import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import {
  APICallError,
  type LanguageModelV4,
  type LanguageModelV4CallOptions,
  type LanguageModelV4StreamPart,
} from '@ai-sdk/provider'
import { isAppError } from '#kernel'
import type { ModelProvider } from '#contracts/model'
import { openerOf, streamPartsOf } from '#kit/models'
import type { ModelReply, ModelRequestBody } from './model-reply.ts'
import { type ModelServer, startModelServer } from './model-server.ts'

/** Prompts that make the provider under test do what the suite tests. What a script leaves out is not tested. */
export interface ModelScript {
  /** The model to ask, without the provider's name. */
  readonly model: string
  /** A prompt whose answer contains `word`. */
  say(word: string): string
  /** A prompt on which the model calls the tool it is offered, `look`, which takes `{at: string}`. */
  readonly tool?: string
  /** A prompt whose answer takes until it is stopped, after at least one text delta. */
  readonly hang?: string
  /** Resolves once the model server saw the connection of `hang` close. */
  readonly closed?: () => Promise<unknown>
  /** A prompt that the model server fails, before or in its answer. */
  readonly failure?: string
  /** An id that the provider does not serve. Omit it for a provider that passes on any id. */
  readonly unknownModel?: string
}

const timeout = 20_000
const look = {
  type: 'function' as const,
  name: 'look',
  description: 'Looks at something.',
  inputSchema: {
    type: 'object' as const,
    properties: { at: { type: 'string' as const } },
    required: ['at'],
    additionalProperties: false,
  },
}

/** Declares a test with the model of the script. */
type Check = (sentence: string, body: (model: LanguageModelV4, t: TestContext) => Promise<void>) => void

/** The contract of a model provider as tests. `make` is called for each test. */
export function testModelProvider(
  name: string,
  make: (t: TestContext) => Promise<ModelProvider> | ModelProvider,
  script: ModelScript,
): void {
  const check: Check = (sentence, body) =>
    void test(`${name}: ${sentence}`, { timeout }, async (t) => body((await make(t)).model(script.model), t))
  testAnswers(check, script)
  const { tool, hang, failure, unknownModel } = script
  if (tool !== undefined) testToolCalls(check, tool)
  if (hang !== undefined) testAbort(check, hang, script)
  if (failure !== undefined) testFailure(check, failure)
  if (unknownModel !== undefined) {
    void test(`${name}: a model it does not serve is refused with 400 unknown_model`, { timeout }, async (t) => {
      const provider = await make(t)
      assert.throws(
        () => provider.model(unknownModel),
        (error) => isAppError(error) && error.status === 400 && error.code === 'unknown_model',
      )
    })
  }
}

function testAnswers(check: Check, script: ModelScript): void {
  check('an answer is text in deltas and ends with one finish that counts tokens', async (model) => {
    const parts = await ask(model, script.say('marmalade'))
    assert.match(textOf(parts), /marmalade/)
    const open = new Set<string>()
    for (const part of parts) {
      if (part.type === 'text-start') open.add(part.id)
      else if (part.type === 'text-delta') assert.ok(open.has(part.id), 'a delta belongs to a text that was started')
      else if (part.type === 'text-end') assert.ok(open.delete(part.id), 'a text that ends was started')
    }
    const finishes = parts.filter((part) => part.type === 'finish')
    assert.equal(finishes.length, 1, 'an answer finishes once')
    assert.equal(parts.at(-1), finishes[0], 'nothing follows the finish')
    const [finish] = finishes
    assert.equal(finish!.finishReason.unified, 'stop')
    for (const { total } of [finish!.usage.inputTokens, finish!.usage.outputTokens]) {
      assert.ok(total !== undefined && total >= 0, `a number of tokens: ${total}`)
    }
  })

  check('an answer that is read without a web stream has the same parts', async (model, t) => {
    if (!('doOpen' in model)) return t.skip('it has none')
    const answer = await openerOf(model)(promptOf(script.say('marmalade')))
    const parts: LanguageModelV4StreamPart[] = []
    for (let some = await answer.next(); some; some = await answer.next()) {
      assert.ok(some.length > 0, 'there is something in what is handed out')
      parts.push(...some.flatMap(streamPartsOf))
    }
    answer.close()
    assert.deepEqual(parts, await ask(model, script.say('marmalade')))
  })

  check('answers at once do not mix', async (model) => {
    const words = ['anise', 'basil', 'clove', 'dill']
    const texts = await Promise.all(words.map(async (word) => textOf(await ask(model, script.say(word)))))
    for (const [i, text] of texts.entries()) {
      assert.deepEqual(
        words.filter((word) => text.includes(word)),
        [words[i]],
      )
    }
  })
}

function testToolCalls(check: Check, tool: string): void {
  check('a tool call names an offered tool with JSON arguments, and its result is answered', async (model) => {
    const parts = await ask(model, tool, { tools: [look] })
    const calls = parts.filter((part) => part.type === 'tool-call')
    assert.ok(calls.length > 0, 'the prompt makes the model call a tool')
    const [call] = calls
    assert.equal(call!.toolName, 'look')
    const input = JSON.parse(call!.input) as { at?: unknown }
    assert.equal(typeof input.at, 'string')
    assert.equal(new Set(calls.map(({ toolCallId }) => toolCallId)).size, calls.length, 'ids differ')
    const after = await ask(model, tool, { tools: [look] }, [
      { role: 'assistant', content: calls.map(({ toolCallId, toolName }) => asked(toolCallId, toolName, input)) },
      { role: 'tool', content: calls.map(({ toolCallId, toolName }) => answered(toolCallId, toolName)) },
    ])
    assert.equal(after.at(-1)?.type, 'finish')
    assert.notEqual(textOf(after), '', 'the result of the tool is answered with text')
  })
}

function testAbort(check: Check, hang: string, script: ModelScript): void {
  check('an answer stops when its signal aborts, and the provider stays usable', async (model) => {
    const abort = new AbortController()
    const { stream } = await model.doStream({ ...promptOf(hang), abortSignal: abort.signal })
    const parts: LanguageModelV4StreamPart[] = []
    try {
      for await (const part of stream) {
        parts.push(part)
        if (part.type === 'text-delta') abort.abort()
      }
    } catch (error) {
      assert.ok(abort.signal.aborted, `the answer failed before it was stopped: ${String(error)}`)
    }
    assert.ok(abort.signal.aborted, 'there was text before the answer was stopped')
    assert.equal(
      parts.some((part) => part.type === 'finish' && part.finishReason.unified === 'stop'),
      false,
      'a stopped answer is not complete',
    )
    await script.closed?.()
    assert.match(textOf(await ask(model, script.say('after'))), /after/)
  })
}

function testFailure(check: Check, failure: string): void {
  check('a failure is told: the call rejects, or the stream says so', async (model) => {
    const told = await ask(model, failure).then(
      (parts) => {
        const finish = parts.find((part) => part.type === 'finish')
        return (
          parts.some((part) => part.type === 'error') || finish === undefined || finish.finishReason.unified === 'error'
        )
      },
      (error: unknown) => error instanceof Error,
    )
    assert.ok(told, 'a failed answer must not look like a complete one')
  })
}

const promptOf = (text: string): LanguageModelV4CallOptions => ({
  prompt: [{ role: 'user', content: [{ type: 'text', text }] }],
})

async function ask(
  model: LanguageModelV4,
  text: string,
  options: Partial<LanguageModelV4CallOptions> = {},
  rest: LanguageModelV4CallOptions['prompt'] = [],
): Promise<LanguageModelV4StreamPart[]> {
  const { prompt } = promptOf(text)
  const { stream } = await model.doStream({ ...options, prompt: [...prompt, ...rest] })
  return Array.fromAsync(stream)
}

const textOf = (parts: readonly LanguageModelV4StreamPart[]): string =>
  parts.map((part) => (part.type === 'text-delta' ? part.delta : '')).join('')

const asked = (toolCallId: string, toolName: string, input: unknown) =>
  ({ type: 'tool-call', toolCallId, toolName, input }) as const
const answered = (toolCallId: string, toolName: string) =>
  ({ type: 'tool-result', toolCallId, toolName, output: { type: 'text', value: 'It is blue.' } }) as const

/** Gives the answers that `testModelProvider` expects, for providers that talk to a model server. */
const scripted = ({ messages }: ModelRequestBody): ModelReply => {
  const asked = JSON.stringify(messages.find(({ role }) => role === 'user')?.content)
  if (asked.includes('tool please')) {
    const answered = messages.length > 1
    return answered
      ? { text: 'It is blue.' }
      : { toolCalls: [{ id: 'call_1', name: 'look', arguments: { at: 'sky' } }] }
  }
  if (asked.includes('wait')) return { text: 'one two three', hangAfter: 1 }
  if (asked.includes('fail')) return { text: 'one two', inBandError: 'overloaded' }
  return { text: /say (\w+)/.exec(asked)?.[1] ?? 'hello' }
}

/** The model server of one test and the script that goes with it. */
export async function startScriptedModels(t: Pick<TestContext, 'after'>): Promise<ModelServer> {
  return startModelServer(t, { reply: scripted })
}

export const modelScript: ModelScript = {
  model: 'stand-in',
  say: (word) => `say ${word}`,
  tool: 'tool please',
  hang: 'wait',
  failure: 'fail',
}

const key = 'key-canary'

/** The form in which a provider's request arrives at its model server. */
interface CallScript {
  readonly path: string
  /** The header with the key, and its value for a key. */
  readonly header: string
  headerOf(key: string): string
}

/** Makes the provider with these settings. Undefined when it is not offered. */
type MakeProvider = (
  t: TestContext,
  config: { apiKey?: string; baseUrl?: string },
) => Promise<ModelProvider | undefined>
type Offered = (t: TestContext, config: { apiKey?: string; baseUrl: string }) => Promise<ModelProvider>

/**
 * Tests how a provider calls a model server over HTTP: when it is offered, what it sends, how it uses connections, and that it reveals no key. The
 * server at `baseUrl` supports all its dialects.
 */
export function testModelCalls(make: MakeProvider, script: CallScript): void {
  const offered: Offered = async (t, config) => {
    const provider = await make(t, config)
    assert.ok(provider)
    return provider
  }
  testOffer(make)
  testRequest(offered, script)
  testConnections(offered)
}

function testOffer(make: MakeProvider): void {
  void test('without a key and a base URL the provider is absent', async (t) => {
    assert.equal(await make(t, {}), undefined)
    assert.equal(await make(t, { apiKey: '', baseUrl: '' }), undefined)
    assert.ok(await make(t, { apiKey: key }))
  })

  void test('an invalid base URL refuses to boot', async (t) => {
    await assert.rejects(make(t, { baseUrl: 'localhost:1' }), /baseUrl expects an http or https URL/)
  })
}

function testRequest(offered: Offered, { path, header, headerOf }: CallScript): void {
  void test('an answer is streamed with its text, tool calls and usage', async (t) => {
    const server = await startModelServer(t)
    server.next({ text: 'one two', toolCalls: [{ id: 'a', name: 'look', arguments: { at: 'it' } }] })
    const models = await offered(t, { apiKey: key, baseUrl: server.url })
    const { stream } = await models.model('m').doStream({ ...promptOf('hi'), maxOutputTokens: 9 })
    const parts: LanguageModelV4StreamPart[] = await Array.fromAsync(stream)
    assert.equal(parts.map((part) => (part.type === 'text-delta' ? part.delta : '')).join(''), 'one two')
    const call = parts.find((part) => part.type === 'tool-call')!
    assert.deepEqual([call.toolCallId, call.toolName, JSON.parse(call.input)], ['a', 'look', { at: 'it' }])
    const finish = parts.find((part) => part.type === 'finish')!
    assert.equal(finish.finishReason.unified, 'tool-calls')
    assert.equal(finish.usage.outputTokens.total, 2)
    const request = server.requests[0]!
    assert.deepEqual([request.path, request.headers[header], request.body.max_tokens], [path, headerOf(key), 9])
  })

  void test('an answer that is not streamed arrives whole', async (t) => {
    const server = await startModelServer(t, { reply: { text: 'one two' } })
    const models = await offered(t, { baseUrl: server.url })
    const { content } = await models.model('m').doGenerate(promptOf('hi'))
    assert.deepEqual(
      content.map((part) => (part.type === 'text' ? part.text : '')),
      ['one two'],
    )
  })

  void test('a failing call says its status and never the key', async (t) => {
    const server = await startModelServer(t, { reply: { status: 401 } })
    const models = await offered(t, { apiKey: key, baseUrl: server.url })
    await assert.rejects(
      async () => models.model('m').doStream(promptOf('hi')),
      (error) => {
        assert.ok(APICallError.isInstance(error))
        assert.equal(error.statusCode, 401)
        assert.doesNotMatch(JSON.stringify(error) + String(error.stack), /canary/)
        return true
      },
    )
  })
}

function testConnections(offered: Offered): void {
  void test('aborting closes the connection at once, before the first byte and in the middle', async (t) => {
    const server = await startModelServer(t)
    const models = await offered(t, { baseUrl: server.url })
    server.next({ text: 'one two', hangAfter: 1 }, { hang: true })
    const middle = new AbortController()
    const { stream } = await models.model('m').doStream({ ...promptOf('hi'), abortSignal: middle.signal })
    const reader = stream.getReader()
    while ((await reader.read()).value?.type !== 'text-delta');
    middle.abort()
    await server.requests[0]!.ended
    assert.equal(server.requests[0]!.closedEarly, true)
    await assert.rejects(async () => {
      while (!(await reader.read()).done);
    })

    const before = new AbortController()
    const asked = { ...promptOf('hi'), abortSignal: before.signal }
    const call = assert.rejects(async () => models.model('m').doStream(asked), { name: 'AbortError' })
    while (server.requests.length < 2) await new Promise((resolve) => setImmediate(resolve))
    before.abort()
    await call
    await server.requests[1]!.ended
    assert.equal(server.requests[1]!.closedEarly, true)
  })

  void test('two hundred streams at once do not wait for each other', async (t) => {
    const server = await startModelServer(t, { reply: { text: 'one two', hangAfter: 1 } })
    const models = await offered(t, { baseUrl: server.url })
    const abort = new AbortController()
    const first = async (): Promise<void> => {
      const { stream } = await models.model('m').doStream({ ...promptOf('hi'), abortSignal: abort.signal })
      const reader = stream.getReader()
      while ((await reader.read()).value?.type !== 'text-delta');
    }
    await Promise.all(Array.from({ length: 200 }, first))
    assert.equal(server.requests.filter(({ closedEarly }) => !closedEarly).length, 200)
    abort.abort()
  })
}
