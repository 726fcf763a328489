import assert from 'node:assert/strict'
import { test } from 'node:test'
import { startToolServer, terminalOf, textOf } from '#testing'
import { bodyOf, call, conversation, model, skip, stage } from './support.ts'

const types = (events: readonly { type: string }[]): string[] => events.map(({ type }) => type)

test('text comes in the deltas of the model, behind the id of the conversation', { skip }, async (t) => {
  const { run, runtime } = await stage(t, { text: 'one two three' })
  const events = await run('hi', { sessionId: 's' })
  assert.deepEqual(types(events), ['session_init', 'assistant', 'assistant', 'assistant', 'usage', 'result'])
  const [init] = events
  assert.ok(init?.type === 'session_init')
  assert.equal((await runtime.exportState!('s'))?.runtimeSessionId, init.runtimeSessionId)
})

test('a conversation that goes on is not announced again to whoever knows its id', { skip }, async (t) => {
  const { run } = await stage(t)
  const [init] = await run('hi', { sessionId: 's' })
  assert.ok(init?.type === 'session_init')
  const again = await run('hi', { sessionId: 's', runtimeSessionId: init.runtimeSessionId })
  assert.equal(types(again).includes('session_init'), false)
  const other = await run('hi', { sessionId: 's', runtimeSessionId: 'another' })
  assert.deepEqual(other[0]?.type === 'session_init' && other[0].runtimeSessionId, init.runtimeSessionId)
})

test(
  'each model call reports what it used, what came out of a cache too, under the name in the profile',
  { skip },
  async (t) => {
    const tools = await startToolServer(t, { look: async () => ({ text: 'seen' }) })
    const { run, models } = await stage(t)
    models.next({ toolCalls: [call('look')], cachedTokens: 12 }, { text: 'done' })
    const first = await run('hi', { sessionId: 's', sessionMcpUrl: tools.url })
    const usage = first.flatMap((event) => (event.type === 'usage' ? [event] : []))
    assert.equal(usage.length, 2)
    assert.deepEqual([usage[0]!.cachedTokens, usage[1]!.cachedTokens], [12, undefined])
    assert.ok(
      usage.every(
        ({ model, inputTokens, outputTokens }) => model === 'openai/stand-in' && inputTokens > 0 && outputTokens > 0,
      ),
    )
    // What the conversation had used before is reported when it is taken up, and belongs to the run before.
    const second = await run('again', { sessionId: 's' })
    assert.equal(second.filter(({ type }) => type === 'usage').length, 1)
  },
)

test('a conversation that grows too long is summarized, and what that used is counted once', { skip }, async (t) => {
  const { run, models } = await stage(t, { text: 'word '.repeat(300) }, { config: { contextTokens: 2_000 } })
  let summarized = 0
  for (const word of ['one', 'two', 'three', 'four']) {
    const before = models.requests.length
    const events = await run(`${word} `.repeat(600), { sessionId: 's' })
    assert.equal(terminalOf(events).type, 'result')
    const calls = models.requests.length - before
    if (calls > 1) summarized++
    assert.equal(events.filter(({ type }) => type === 'usage').length, calls)
    assert.match(conversation(models.requests.at(-1)!).at(-1)!, new RegExp(`^user: ${word} `))
  }
  assert.ok(summarized > 0)
})

test('a tool call has its id, its plain name, its arguments and its result', { skip }, async (t) => {
  const tools = await startToolServer(t, {
    look: async () => ({ text: 'seen' }),
    fail: async () => ({ text: 'no', isError: true }),
  })
  const { run, models } = await stage(t)
  models.next(
    { text: 'Let me look.', toolCalls: [call('look', { at: 'sky' }, 'a')] },
    { toolCalls: [call('fail', {}, 'a')] },
    { text: 'done' },
  )
  const events = await run('hi', { sessionMcpUrl: tools.url, sessionMcpToken: 'token' })
  const called = events.flatMap((event) =>
    event.type === 'tool_call'
      ? [[event.id, event.name, event.arguments]]
      : event.type === 'tool_result'
        ? [[event.id, event.name, event.ok, event.content]]
        : [],
  )
  assert.deepEqual(called, [
    ['a', 'look', { at: 'sky' }],
    ['a', 'look', true, 'seen'],
    ['a_2', 'fail', {}],
    ['a_2', 'fail', false, 'no'],
  ])
  const terminal = terminalOf(events)
  assert.ok(terminal.type === 'result')
  assert.equal(terminal.text, 'Let me look.\n\ndone')
  assert.equal(textOf(events), terminal.text)
  assert.ok(tools.tokens.length > 0 && tools.tokens.every((token) => token === 'Bearer token'))
})

test('calls of one answer are executed at once', { skip }, async (t) => {
  let inside = 0
  const { promise: both, resolve } = Promise.withResolvers<void>()
  const meet = async () => {
    if (++inside === 2) resolve()
    await both
    return { text: 'met' }
  }
  const tools = await startToolServer(t, { meet })
  const { run, models } = await stage(t)
  models.next({ toolCalls: [call('meet', {}, 'a'), call('meet', {}, 'b')] }, { text: 'done' })
  assert.equal(terminalOf(await run('hi', { sessionMcpUrl: tools.url })).type, 'result')
})

test(
  'tools of a server of the profile carry its name; one that is dead costs the run only its own',
  { skip },
  async (t) => {
    const tools = await startToolServer(t, { look: async () => ({ text: 'seen' }) })
    const { run, models } = await stage(t)
    models.next({ toolCalls: [{ name: 'look', namespace: 'mcp__weather', arguments: {} }] }, { text: 'done' })
    const mcpServers = [
      { name: 'weather', url: tools.url, headers: { authorization: 'Bearer weather', 'x-more': 'more' } },
      { name: 'dead', url: 'http://127.0.0.1:9/mcp' },
    ]
    const events = await run('hi', { mcpServers })
    assert.equal(terminalOf(events).type, 'result')
    assert.deepEqual(
      events.flatMap((event) => (event.type === 'tool_call' ? [event.name] : [])),
      ['mcp__weather__look'],
    )
    assert.ok(tools.tokens.length > 0 && tools.tokens.every((token) => token === 'Bearer weather'))
    const progress = events.flatMap((event) => (event.type === 'progress' ? [[event.stage, event.server]] : []))
    assert.deepEqual(progress, [['mcp_server_unavailable', 'dead']])
  },
)

test("a server of the profile may be called as the session's own is", { skip }, async (t) => {
  const own = await startToolServer(t, { look: async () => ({ text: 'own' }) })
  const other = await startToolServer(t, { look: async () => ({ text: 'other' }) })
  const { run, models } = await stage(t)
  models.next({ toolCalls: [call('look')] }, { text: 'done' })
  const events = await run('hi', { sessionMcpUrl: own.url, mcpServers: [{ name: 'runner', url: other.url }] })
  const results = events.flatMap((event) => (event.type === 'tool_result' ? [[event.name, event.content]] : []))
  assert.deepEqual(results, [['mcp__runner__look', 'other']])
  const names = bodyOf(models.requests[0]!).tools!.map(({ name }) => name)
  assert.ok(names.includes('mcp__runner') && names.includes('mcp__runner_'))
})

test("the model is told the profile's instructions and nothing else", { skip }, async (t) => {
  const { run, models } = await stage(t)
  await run('hi', { profile: { instructions: 'Speak Latin.' } })
  assert.deepEqual(conversation(models.requests[0]!), ['developer: Speak Latin.', 'user: hi'])
  assert.equal(bodyOf(models.requests[0]!).instructions ?? '', '')
  await run('hi')
  assert.deepEqual(conversation(models.requests[1]!), ['user: hi'])
})

test('instructions that changed hold from the next run on', { skip }, async (t) => {
  const { run, models } = await stage(t)
  await run('one', { sessionId: 's', profile: { instructions: 'Speak Latin.' } })
  await run('two', { sessionId: 's', profile: { instructions: 'Speak Greek.' } })
  const told = conversation(models.requests[1]!)
  assert.ok(told.includes('developer: Speak Greek.'), told.join('\n'))
  assert.ok(!told.includes('developer: Speak Latin.'), told.join('\n'))
})

test('images and texts go along with a prompt; anything else is refused with a sentence', { skip }, async (t) => {
  const { run, models } = await stage(t)
  const png = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='
  const attachments = [
    { mediaType: 'image/png', data: png },
    { mediaType: 'text/csv', data: Buffer.from('a,b').toString('base64'), name: 'table.csv' },
  ]
  assert.equal(terminalOf(await run('look', { attachments })).type, 'result')
  const [prompt, image, file] = bodyOf(models.requests[0]!).input.at(-1)!.content!
  assert.equal(prompt!.text, 'look')
  assert.equal(image!['image_url'], `data:image/png;base64,${png}`)
  assert.equal(file!.text, 'File table.csv (text/csv):\na,b')
  await assert.rejects(run('look', { attachments: [{ mediaType: 'application/pdf', data: 'AAAA' }] }), {
    code: 'unsupported_attachment',
    message: 'runtime_b takes texts and images (PNG, JPEG, GIF, WebP) as attachments, and not application/pdf.',
  })
})

test('an answer in a form is asked for and checked', { skip }, async (t) => {
  const { run, models } = await stage(t, { text: '{"n":1}' })
  const schema = {
    type: 'object',
    properties: { n: { type: 'integer' } },
    required: ['n'],
    additionalProperties: false,
  }
  const form = { responseFormat: { type: 'json_schema' as const, schema } }
  const fits = terminalOf(await run('count', form))
  assert.ok(fits.type === 'result')
  assert.deepEqual(fits.output, { n: 1 })
  const { format } = bodyOf(models.requests[0]!)['text'] as { format: { type: string; schema: unknown } }
  assert.deepEqual([format.type, format.schema], ['json_schema', schema])
  for (const text of ['{"n":"one"}', 'one']) {
    models.next({ text })
    const terminal = terminalOf(await run('count', form))
    assert.ok(terminal.type === 'error' && terminal.code === 'invalid_output', text)
  }
})

test(
  'a form that the vendor would refuse is told to the model instead, and checked all the same',
  { skip },
  async (t) => {
    const { run, models } = await stage(t, { text: '```json\n{"n":1}\n```' })
    const schema = { type: 'object', properties: { n: { type: 'integer', minimum: 1 } } }
    const form = { responseFormat: { type: 'json_schema' as const, schema } }
    const fits = terminalOf(await run('count', form))
    assert.ok(fits.type === 'result')
    assert.deepEqual(fits.output, { n: 1 })
    assert.equal((bodyOf(models.requests[0]!)['text'] as { format?: unknown } | undefined)?.format, undefined)
    assert.match(
      bodyOf(models.requests[0]!).input.at(-1)!.content!.at(-1)!.text!,
      /fits this JSON Schema: \{"type":"object"/,
    )
    models.next({ text: '{"n":0}' })
    const misses = terminalOf(await run('count', form))
    assert.ok(misses.type === 'error' && misses.code === 'invalid_output')
  },
)

test('a run that reaches its limit of model calls ends in max_steps', { skip }, async (t) => {
  const tools = await startToolServer(t, { look: async () => ({ text: 'seen' }) })
  // Codex begins the next model call while it is being stopped.
  const { run, models } = await stage(t, { hang: true })
  const looks = { toolCalls: [call('look')] }
  models.next(looks, looks, looks)
  const events = await run('hi', { sessionMcpUrl: tools.url, profile: { limits: { maxSteps: 3 } } })
  const terminal = terminalOf(events)
  assert.deepEqual(terminal.type === 'error' && [terminal.code, terminal.message], [
    'max_steps',
    'The run reached its limit of 3 model calls before an answer.',
  ])
  assert.equal(tools.calls.length, 3)
  assert.equal(events.filter(({ type }) => type === 'usage').length, 3, 'what was used is counted')
  models.next(looks, looks, { text: 'done' })
  const within = await run('hi', { sessionMcpUrl: tools.url, profile: { limits: { maxSteps: 3 } } })
  assert.equal(terminalOf(within).type, 'result')
})

test('a limit that Codex does not know is refused, not ignored', { skip }, async (t) => {
  const { run } = await stage(t)
  await assert.rejects(run('hi', { profile: { limits: { maxOutputTokens: 5 } } }), { code: 'unsupported_limit' })
})

test('models of another provider are refused, and so is a role without a model server', { skip }, async (t) => {
  const { run } = await stage(t)
  const other = terminalOf(await run('hi', { profile: { model: 'anthropic/x' } }))
  assert.ok(other.type === 'error' && other.code === 'unknown_model')
  const bare = await stage(t, {}, { config: { apiKey: '', baseUrl: '' } })
  const none = terminalOf(await bare.run('hi'))
  assert.ok(none.type === 'error' && none.code === 'unknown_model')
  assert.match(none.message, /OPENAI_API_KEY/)
})

test('a slash in the name of a model is part of it', { skip }, async (t) => {
  const { run, models } = await stage(t)
  await run('hi', { profile: { ...model.profile, model: 'openai/org/model' } })
  assert.equal(bodyOf(models.requests[0]!).model, 'org/model')
})
