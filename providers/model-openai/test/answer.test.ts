import assert from 'node:assert/strict'
import { test } from 'node:test'
import { OpenAICompatibleChatLanguageModel } from '@ai-sdk/openai-compatible'
import type { LanguageModelV4, LanguageModelV4StreamPart } from '@ai-sdk/provider'
import fc from 'fast-check'
import type { ModelFetch } from '#contracts/model'
import { postBy } from '#kit/models'
import { openerOf, streamPartsOf } from '#kit/models'
import { createChatModels } from '../chat.ts'

const prompt = [{ role: 'user' as const, content: [{ type: 'text' as const, text: 'hi' }] }]
const baseUrl = 'http://127.0.0.1:1/v1'

/** A server that answers with these bytes. */
const answering =
  (pieces: readonly Uint8Array[]): ModelFetch =>
  async () =>
    new Response(ReadableStream.from(pieces) as ReadableStream<Uint8Array>)

const ours = (fetch: ModelFetch): LanguageModelV4 =>
  createChatModels({ baseUrl, headers: {}, fetch, post: postBy(fetch) })('m')

const packaged = (fetch: ModelFetch): LanguageModelV4 =>
  new OpenAICompatibleChatLanguageModel('m', { provider: 'openai.chat', url: () => baseUrl, fetch })

/** All parts, and how the answer broke off. What the package says besides about usage and errors is left out. */
async function partsOf(model: LanguageModelV4): Promise<unknown[]> {
  const parts = await openerOf(model)({ prompt })
  const all: unknown[] = []
  const ids = new Map<string, string>()
  for (let some = await parts.next(); some; some = await parts.next())
    all.push(...some.flatMap(streamPartsOf).map((part) => plain(part, ids)))
  return all
}

/** Generated ids are replaced by their order. */
function plain(part: LanguageModelV4StreamPart, ids: Map<string, string>): unknown {
  const named = (id: string): string => {
    if (!ids.has(id)) ids.set(id, id.length < 16 ? id : `made up ${ids.size}`)
    return ids.get(id)!
  }
  if (part.type === 'tool-call') return { ...part, toolCallId: named(part.toolCallId) }
  if (part.type.startsWith('tool-input') && 'id' in part) return { ...part, id: named(part.id) }
  if (part.type === 'error') return { type: 'error', error: part.error instanceof Error ? 'invalid' : part.error }
  if (part.type !== 'finish') return part
  const { raw: _, ...usage } = part.usage
  return { ...part, usage, providerMetadata: undefined }
}

const some = fc.oneof(
  fc.string({ maxLength: 20, unit: 'grapheme' }),
  fc.constantFrom(
    '',
    '"',
    '\\',
    '\\"',
    '\n',
    '"content":"',
    '","role":"',
    'a long piece of text that is no copy',
    '\u2028',
    '\ud83d',
    '\ude00',
  ),
)
const maybe = <T>(arbitrary: fc.Arbitrary<T>) => fc.option(arbitrary, { nil: null, freq: 4 })
const call = fc.record(
  {
    index: fc.nat(2),
    id: maybe(fc.constantFrom('a', 'b', 'c')),
    function: fc.record({
      name: maybe(fc.constantFrom('look', 'see')),
      arguments: maybe(fc.constantFrom('{', '}', '{"a":1}', ' ')),
    }),
    extra_content: maybe(fc.constant({ google: { thought_signature: 'signed' } })),
  },
  { requiredKeys: ['index', 'function'] },
)
const textDelta = fc.record({ content: some })
const delta = fc.oneof(
  { weight: 6, arbitrary: textDelta },
  { weight: 1, arbitrary: fc.record({ role: fc.constant('assistant'), content: maybe(some) }) },
  {
    weight: 1,
    arbitrary: fc.record({ reasoning_content: some, content: maybe(some) }, { requiredKeys: ['reasoning_content'] }),
  },
  // Frames that could be mistaken for one that only adds text.
  { weight: 2, arbitrary: fc.constantFrom('a', 'b').map((content) => ({ reasoning: 'hm', content })) },
  { weight: 2, arbitrary: fc.constantFrom('a', 'b').map((content) => ({ content, reasoning: 'hm' })) },
  { weight: 2, arbitrary: fc.constantFrom('a', 'b').map((content) => ({ content, role: '' })) },
  { weight: 1, arbitrary: fc.record({ reasoning: some }) },
  { weight: 1, arbitrary: fc.record({ refusal: fc.oneof(some, fc.constant(false)) }) },
  {
    weight: 1,
    arbitrary: fc.record({
      content: fc.array(
        fc.oneof(
          fc.record({ type: fc.constant('text'), text: some }),
          fc.record({
            type: fc.constant('thinking'),
            thinking: fc.array(fc.record({ type: fc.constant('text'), text: some })),
          }),
          fc.record({ type: fc.constant('other') }),
        ),
        { maxLength: 3 },
      ),
    }),
  },
  { weight: 1, arbitrary: fc.record({ tool_calls: fc.array(call, { maxLength: 2 }) }) },
)
const finish = fc.constantFrom('stop', 'length', 'tool_calls', 'content_filter', 'odd')
const usage = fc.record(
  {
    prompt_tokens: maybe(fc.nat(100)),
    completion_tokens: maybe(fc.nat(100)),
    prompt_tokens_details: maybe(fc.record({ cached_tokens: maybe(fc.nat(50)) })),
    completion_tokens_details: maybe(fc.record({ reasoning_tokens: maybe(fc.nat(50)) })),
  },
  { requiredKeys: [] },
)
const head = { id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1_760_000_000, model: 'stand-in' }
const frame = fc.oneof(
  {
    weight: 12,
    arbitrary: fc.tuple(delta, maybe(finish), fc.boolean()).map(([d, reason, ends]) => ({
      ...head,
      choices: [{ index: 0, delta: d, finish_reason: ends ? reason : null }],
    })),
  },
  // What a server writes whose frames differ in more than their text.
  {
    weight: 2,
    arbitrary: fc
      .tuple(textDelta, fc.string({ maxLength: 4 }))
      .map(([d, noise]) => ({ ...head, choices: [{ index: 0, delta: d }], noise })),
  },
  { weight: 2, arbitrary: usage.map((value) => ({ ...head, choices: [], usage: value })) },
  {
    weight: 1,
    arbitrary: fc.constantFrom<unknown>(
      { error: { message: 'overloaded', type: 'server_error' } },
      { choices: 7 },
      7,
      null,
    ),
  },
)

test('every answer has the parts that the package makes of it, however its bytes are cut', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(frame, { maxLength: 12 }),
      finish,
      fc.constantFrom('\n\n', '\r\n\r\n', '\r\r', '\n\r\n'),
      fc.constantFrom('data: ', 'data:'),
      fc.integer({ min: 1, max: 400 }),
      async (frames, reason, end, field, size) => {
        const last = { ...head, choices: [{ index: 0, delta: {}, finish_reason: reason }] }
        const text = [...frames, last].map((value) => `${field}${JSON.stringify(value)}${end}`).join('')
        const bytes = Buffer.from(`${text}${field}[DONE]${end}`)
        const pieces = Array.from({ length: Math.ceil(bytes.length / size) }, (_, i) =>
          bytes.subarray(i * size, (i + 1) * size),
        )
        const expected = await partsOf(packaged(answering(pieces))).catch(() => 'broken')
        const parts = await partsOf(ours(answering(pieces)))
        if (expected === 'broken') return assert.ok(failed(parts), 'what the package cannot read is an error')
        if (failed(expected as unknown[])) return assert.deepEqual(upToError(parts), upToError(expected as unknown[]))
        assert.deepEqual(parts, expected)
      },
    ),
    { numRuns: 300 },
  )
})

const isError = (part: unknown): boolean => (part as { type: string }).type === 'error'
const failed = (parts: readonly unknown[]): boolean => parts.some(isError)
/** A reader stops at an error. */
const upToError = (parts: readonly unknown[]): unknown[] => parts.slice(0, parts.findIndex(isError) + 1)

test('frames that differ in their text alone are handed out together, whatever stands between them', async () => {
  const texts = ['a', 'longer than a few letters', '"', '\\', 'é', '😀', '\n', '\ud83d', '\ude00', 'b']
  const line = (d: object): string => `data: ${JSON.stringify({ ...head, choices: [{ index: 0, delta: d }] })}`
  const same = texts.map((content) => line({ content }))
  for (const gap of ['\n\n', '\r\n\r\n']) {
    const frames = [
      ...same,
      line({ content: null, reasoning: 'hm' }),
      ': comment',
      ...same,
      line({ content: '' }),
      ...same,
    ]
    const bytes = Buffer.from(frames.map((one) => `${one}${gap}`).join(''))
    const parts = await openerOf(ours(answering([bytes])))({ prompt })
    const taken = (await parts.next()) ?? []
    parts.close()
    const together = taken.flatMap((part) => (part.type === 'text-deltas' ? [part.deltas] : []))
    // One frame is parsed to learn from it; an empty text is learned as part of the constant bytes.
    assert.deepEqual(together, [texts.slice(1), [...texts, ...texts]])
  }
})

test('an answer that does not end is broken off, whatever it consists of', async () => {
  let pulled = 0
  const piece = Buffer.alloc(1024 * 1024, 'x')
  const endless = new ReadableStream<Uint8Array>({
    pull: (controller) => {
      if (++pulled > 200) controller.close()
      else controller.enqueue(pulled === 1 ? Buffer.from('data: "') : piece)
    },
  })
  await assert.rejects(
    partsOf(ours(async () => new Response(endless))),
    ({ message, isRetryable }: { message: string; isRetryable: boolean }) =>
      /does not end/.test(message) && !isRetryable,
  )
  assert.ok(pulled < 100, `${pulled} MiB`)
})
