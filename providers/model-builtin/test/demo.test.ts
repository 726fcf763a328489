import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { LanguageModelV4CallOptions, LanguageModelV4Prompt, LanguageModelV4StreamPart } from '@ai-sdk/provider'
import { arithmeticIn } from '../rules.ts'
import { demoModel } from '../index.ts'

const user = (text: string): LanguageModelV4Prompt[number] => ({ role: 'user', content: [{ type: 'text', text }] })
const assistant = (text: string): LanguageModelV4Prompt[number] => ({
  role: 'assistant',
  content: [{ type: 'text', text }],
})
const tool = (name: string, property: string) => ({
  type: 'function' as const,
  name,
  inputSchema: {
    type: 'object' as const,
    properties: { [property]: { type: 'string' as const } },
    required: [property],
  },
})
const tools = [
  tool('calculate', 'expression'),
  tool('current_time', 'timezone'),
  tool('search_docs', 'query'),
  tool('shell', 'command'),
]

async function partsOf(options: LanguageModelV4CallOptions): Promise<LanguageModelV4StreamPart[]> {
  const { stream } = await demoModel().doStream(options)
  return Array.fromAsync(stream)
}
const textOf = (parts: LanguageModelV4StreamPart[]): string =>
  parts.map((part) => (part.type === 'text-delta' ? part.delta : '')).join('')
const ask = async (...texts: string[]): Promise<string> => textOf(await partsOf({ prompt: texts.map(user) }))
const callOf = async (text: string): Promise<string | undefined> => {
  const part = (await partsOf({ prompt: [user(text)], tools })).find(({ type }) => type === 'tool-call')
  return part?.type === 'tool-call' ? `${part.toolName} ${part.input}` : undefined
}

test('the demo responder says that it is no language model, word by word, the same every time', async () => {
  const parts = await partsOf({ prompt: [user('Tell me a story')] })
  assert.match(textOf(parts), /^I am the built-in demo responder, not a language model.*You said: "Tell me a story"/)
  assert.ok(parts.filter(({ type }) => type === 'text-delta').length > 20)
  assert.deepEqual(await partsOf({ prompt: [user('Tell me a story')] }), parts)
  assert.match(await ask('Who are you?'), /not a language model/)
})

test('it remembers the conversation', async () => {
  const prompt = [user('Hello, my name is Ada'), assistant('Nice to meet you, Ada.'), user('What is my name?')]
  assert.equal(textOf(await partsOf({ prompt })), 'Your name is Ada.')
  assert.equal(await ask('What is my name?'), 'You have not told me your name yet.')
  assert.equal(
    await ask('The sky is green', 'What did I say before?'),
    'Before this message you said: "The sky is green".',
  )
})

test('it calls the tool that a message calls for, when there is one', async () => {
  assert.equal(await callOf('What is 17 * 23?'), 'calculate {"expression":"17 * 23"}')
  assert.equal(await callOf('What is 15% of 80?'), 'calculate {"expression":"80 * 15 / 100"}')
  assert.equal(await callOf('What time is it in Europe/Berlin?'), 'current_time {"timezone":"Europe/Berlin"}')
  assert.equal(await callOf('What is the date?'), 'current_time {}')
  assert.equal(await callOf('How do I publish a profile?'), 'search_docs {"query":"How do I publish a profile?"}')
  assert.equal(await callOf('Please run `echo 17 * 23 > n`.'), 'shell {"command":"echo 17 * 23 > n"}')
  assert.equal(await callOf('Tell me a story'), undefined)
  assert.match(await ask('What is 17 * 23?'), /not a language model/)
})

test('it answers with the results of its tools, failed ones included', async () => {
  const call = { type: 'tool-call' as const, toolCallId: 'a', toolName: 'calculate', input: {} }
  const answered = (type: 'text' | 'error-text', value: string) =>
    partsOf({
      tools,
      prompt: [
        user('What is 17 * 23?'),
        { role: 'assistant', content: [call] },
        {
          role: 'tool',
          content: [{ type: 'tool-result', toolCallId: 'a', toolName: 'calculate', output: { type, value } }],
        },
      ],
    })
  assert.equal(textOf(await answered('text', '391')), 'The result is 391.')
  assert.equal(textOf(await answered('error-text', 'no')), 'The tool calculate failed: no')
})

test('arithmetic is found in a message, and nothing else is taken for it', () => {
  const found: [string, string | undefined][] = [
    ['what is 2+2', '2+2'],
    ['compute (3 + 4) * 2 please', '(3 + 4) * 2'],
    ['12 times 12', '12 * 12'],
    ['1,250 divided by 5', '1250 / 5'],
    ['2.5 percent of 1,000', '1000 * 2.5 / 100'],
    ['2^10', '2^10'],
    ['the year 2026', undefined],
    ['on 2026-11-21', undefined],
    ['x - y', undefined],
    [')2+2(', '2+2'],
  ]
  for (const [text, expression] of found) assert.equal(arithmeticIn(text), expression, text)
})

test('usage counts words, and maxOutputTokens cuts the answer', async () => {
  const parts = await partsOf({ prompt: [user('one two three')], maxOutputTokens: 4 })
  const finish = parts.at(-1)!
  assert.ok(finish.type === 'finish')
  assert.equal(textOf(parts).trim(), 'I am the built-in')
  assert.deepEqual(
    [finish.finishReason.unified, finish.usage.inputTokens.total, finish.usage.outputTokens.total],
    ['length', 3, 4],
  )
})

test('a message of a million characters is quoted in part, and not worked through', async () => {
  // Reading all of it in quadratic time would exceed the time limit of the test.
  for (const letter of [' ', '1', '(']) {
    const said = await ask(letter.repeat(1_000_000))
    assert.match(said, /^I am the built-in demo responder, not a language model/)
    assert.ok(said.includes(letter.repeat(100)) && said.length < 2_000, `${said.length} characters`)
    assert.equal(await callOf(letter.repeat(1_000_000)), undefined)
  }
})

test('a message that asks several things calls several tools at once, each with its part of the question', async () => {
  const parts = await partsOf({ prompt: [user('What is 17% of 2310? Which page covers draining?')], tools })
  const calls = parts.flatMap((part) => (part.type === 'tool-call' ? [`${part.toolName} ${part.input}`] : []))
  assert.deepEqual(calls, [
    'calculate {"expression":"2310 * 17 / 100"}',
    'search_docs {"query":"Which page covers draining?"}',
  ])
  assert.equal(new Set(parts.flatMap((part) => (part.type === 'tool-call' ? [part.toolCallId] : []))).size, 2)
})

test('it says what came with a message, and what it is', async () => {
  const file = {
    type: 'file' as const,
    mediaType: 'image/png',
    filename: 'dot.png',
    data: { type: 'data' as const, data: 'aGVsbG8=' },
  }
  const text = { type: 'text' as const, text: 'What is this?' }
  const said = textOf(await partsOf({ prompt: [{ role: 'user', content: [file, text] }] }))
  assert.match(said, /not a language model.*dot\.png \(image\/png, 5 bytes\), but cannot look inside/)
})

test('it answers in the form that is asked for, and says what it is where a text fits', async () => {
  const schema = {
    type: 'object' as const,
    properties: {
      answer: { type: 'string' as const },
      count: { type: 'integer' as const, minimum: 1 },
      kind: { enum: ['a', 'b'] },
      at: { type: 'string' as const, format: 'date' },
      tags: { type: 'array' as const, items: { $ref: '#/$defs/tag' }, minItems: 2 },
      next: { anyOf: [{ type: 'null' as const }, { $ref: '#' }] },
    },
    $defs: { tag: { type: 'string' as const, maxLength: 4 } },
  }
  const responseFormat = { type: 'json' as const, schema }
  const value = JSON.parse(textOf(await partsOf({ prompt: [user('Give me 3 of them')], responseFormat })))
  assert.match(value.answer, /not a language model/)
  assert.deepEqual(
    { ...value, answer: '' },
    { answer: '', count: 3, kind: 'a', at: '2026-01-01', tags: ['I am', 'I am'], next: null },
  )
  const loop = { type: 'object' as const, properties: { next: { $ref: '#' } } }
  await partsOf({ prompt: [user('x')], responseFormat: { type: 'json', schema: loop } })
})

test('an answer in a form is bounded, whatever the form asks for', async () => {
  const wide = Object.fromEntries(Array.from({ length: 150 }, (_, i) => [`a${i}`, { $ref: '#' }]))
  const nested = (items: object, depth: number): object =>
    depth === 0 ? items : { type: 'array', minItems: 490, items: nested(items, depth - 1) }
  for (const schema of [
    nested({ type: 'object', properties: wide }, 6),
    nested({ $ref: '#/$defs/none' }, 12),
    { type: 'array', minItems: 490, items: { type: 'object', properties: { ['x'.repeat(30_000)]: {} } } },
    { type: 'array', minItems: 1_000_000_000, items: { type: 'integer' } },
    { type: 'array', minItems: 1_000_000_000, items: { type: 'array', minItems: 1_000_000_000 } },
    { type: 'object', properties: wide },
    { type: 'string', minLength: 400_000_000 },
    { type: 'array', minItems: 1_000, items: { const: 'x'.repeat(60_000) } },
  ] as const) {
    const text = textOf(
      await partsOf({ prompt: [user('x')], responseFormat: { type: 'json', schema: schema as never } }),
    )
    assert.ok(text.length < 500_000, `${text.length} characters`)
  }
})

test('of a form that names many others, no more are looked at than an answer has values', async () => {
  let looked = 0
  const allOf = Array.from({ length: 2_000 }, () => ({
    get type() {
      looked++
      return 'string' as const
    },
  }))
  const schemaOf = (count: number) => ({ type: 'array', minItems: 200, items: { allOf: allOf.slice(0, count) } })
  const said = async (count: number) =>
    textOf(await partsOf({ prompt: [user('x')], responseFormat: { type: 'json', schema: schemaOf(count) as never } }))
  assert.match(await said(1), /not a language model/)
  await said(2_000)
  assert.ok(looked < 1_000, `${looked} were looked at`)
})
