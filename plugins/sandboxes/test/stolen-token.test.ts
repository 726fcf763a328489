import assert from 'node:assert/strict'
import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import type { UsageEvent } from '#contracts/run-event'
import { workerPaths } from '#contracts/wire/worker'
import { callsAtOnce, type ModelCallsOptions } from '../egress/calls.ts'
import { begin, callsOf, startHub, until } from './hub.ts'

// What a program in a sandbox can do with the token of its worker, which it can read; docs/security.md lists it.

interface Asked {
  readonly headers: IncomingHttpHeaders
  readonly body: string
  readonly response: ServerResponse
}

/** A run whose worker's token is known to somebody else. `respond` is the model server, which answers `pong` unless given. */
async function thief(
  t: TestContext,
  {
    model = 'openai/cheap',
    respond,
    ...options
  }: Partial<ModelCallsOptions> & { respond?: (asked: Asked) => void } = {},
) {
  const bodies: string[] = []
  const server = createServer(async (request, response) => {
    const parts: Buffer[] = []
    try {
      for await (const part of request) parts.push(part as Buffer)
    } catch {
      return
    }
    const body = Buffer.concat(parts).toString()
    bodies.push(`${request.headers['content-type']} ${body}`)
    if (respond) respond({ headers: request.headers, body, response })
    else response.end('"pong"')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => void (server.closeAllConnections(), server.close()))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`
  const hub = await startHub(t, {
    models: { openai: { apiKey: 'k', baseUrl: url }, anthropic: { apiKey: 'k', baseUrl: url } },
  })
  const { channel } = await hub.open()
  const used: UsageEvent[] = []
  const calls = callsOf({ model, onUsage: (usage) => void used.push(usage), ...options })
  const run = new AbortController()
  const reading = begin(channel, { profile: { model } }, run.signal, calls).next()
  reading.catch(() => {})
  const paths = workerPaths(channel.sessionId)
  const send = (
    path: string,
    body: string | readonly string[],
    { provider = 'openai', headers = {}, signal }: { provider?: string; headers?: object; signal?: AbortSignal } = {},
  ): Promise<Response> => {
    // A string is sent whole, an array in parts one after the other.
    const sent = typeof body === 'string' ? body : ReadableStream.from(body.map((part) => Buffer.from(part)))
    const init = { method: 'POST', body: sent, duplex: 'half', ...(signal ? { signal } : {}) } as RequestInit
    const all = { authorization: `Bearer ${channel.token}`, ...headers }
    return fetch(`${hub.urls['workers']}${paths.models(provider)}/${path}`, { ...init, headers: all })
  }
  /** Resolves to 200, or to the code of the error. */
  const post = async (body: string | readonly string[], provider = 'openai', headers = {}): Promise<unknown> => {
    const path = provider === 'anthropic' ? 'messages' : 'chat/completions'
    const reply = await send(path, body, { provider, headers })
    const text = await reply.text()
    return reply.status === 200 ? 200 : (JSON.parse(text) as { error: string }).error
  }
  return { post, send, bodies, run, reading, calls, used }
}

test('a stolen token calls the model of the run under way, and no other one, however the call is written', async (t) => {
  const { post, bodies, run, reading } = await thief(t)
  const allowed: (string | readonly string[])[] = [
    '{"model":"cheap"}',
    ' {"messages":[{"model":"dear","content":"\\"}{,:"}], "model" : "cheap" , "n":1}\n',
    ['{"mod', 'el":"ch', 'eap","messages":[]', '}'],
    '{"metadata":{"model":"dear"},"model":"cheap","tools":[[{"model":1}]]}',
  ]
  for (const body of allowed) assert.equal(await post(body), 200, String(body))
  assert.equal(bodies.length, allowed.length)
  const refused: (string | readonly string[])[] = [
    '{"model":"dear"}',
    '{"model":"cheap","model":"dear"}',
    '{"model":"cheap","model":"cheap"}',
    '{"model":"cheap","Model":"dear"}',
    '{"MODEL":"cheap"}',
    '{"model":"cheap","mod\\u0065l":"dear"}',
    '{"model":"ch\\u0065ap"}',
    '{"model":"cheap","models":["dear"]}',
    '{"model":"cheap","fallbacks":[{"model":"dear"}]}',
    '{"model":["cheap"]}',
    '{"model":null}',
    '{"messages":[{"model":"cheap"}]}',
    '{"model":"cheap"}{"model":"dear"}',
    '[{"model":"cheap"}]',
    '{"model":"cheap"',
    'model=cheap',
    '\u{feff}{"model":"cheap"}',
    Buffer.from('{"model":"cheap"}', 'utf16le').toString('latin1'),
    '{}',
    '',
    ['{"messages":["', 'x'.repeat(200_000), '"],"model":"dear"}'],
  ]
  for (const body of refused) assert.equal(await post(body), 'model_not_allowed', String(body).slice(0, 80))
  assert.equal(await post('{"model":"cheap"}', 'anthropic'), 'model_not_allowed', 'another provider')
  assert.equal(await post('{"model":"cheap"}', 'nobody'), 'unknown_model_provider')
  // The body is read as uncompressed JSON, whatever its headers say.
  const form = { 'content-type': 'application/x-www-form-urlencoded', 'content-encoding': 'gzip' }
  assert.equal(await post('{"model":"cheap"}', 'openai', form), 200)
  assert.equal(bodies.length, allowed.length + 1, 'nothing that was refused has reached a model')
  for (const body of bodies) assert.match(body, /^application\/json /)
  run.abort(new Error('the run is over'))
  await reading.catch(() => {})
  assert.equal(await post('{"model":"cheap"}'), 'no_run_under_way')
})

test('a stolen token has no other model called by a tool, a plugin or a list, wherever the body names it', async (t) => {
  const { post, bodies } = await thief(t)
  const named = (rest: string): string => `{"model":"cheap",${rest}}`
  const tool = (rest: string): string => named(`"tools":[{"type":"function","name":"f",${rest}}]`)
  const refused: (string | readonly string[])[] = [
    named('"tools":[{"type":"advisor_20260301","name":"advisor","model":"dear"}]'),
    named('"tools":[{"type":"openrouter:advisor","parameters":{"model":"dear"}}]'),
    named('"tools":[{"type":"openrouter:fusion"}]'),
    named('"tools":[{"type":"openrouter:f\\u0075sion"}]'),
    named('"plugins":[{"id":"fusion"}]'),
    named('"plugins":[{"id":"x","analysis_models":["cheap","dear"]}]'),
    named('"plugins":[{"id":"x","analysisModels":[{"id":"dear"}]}]'),
    named('"provider":{"fallbacks":[["dear"]]}'),
    named('"a":{"Models":["dear"]}'),
    named('"a":[{"mod\\u0065l":"dear"}]'),
    named('"a":{"model\u017f":["dear"]}'),
    named('"a":{"model":"ch\\u0065ap"}'),
    named('"a":{"model":"cheap","model":"dear"}'),
    named('"a":{"model" : \n "dear"}'),
    named('"a":{"\\q":1}'),
    named('"judge_model":"dear"'),
    named('"a":{"properties":{"model":"dear"},"model":"dear"}'),
    named('"messages":[],"a":{"model":"dear"}'),
    named('"\\u006dessages":[{"model":"dear"}]'),
    named('"a":{"messages":[{"model":"dear"}]}'),
    // Conversations can define tools, too.
    named('"input":[{"type":"additional_tools","tools":[{"type":"x","model":"dear"}]}]'),
    named('"messages":[{"role":"system","content":[{"tool":{"definition":{"type":"x","model":"dear"}}}]}]'),
    named('"messages":[{"content":[{"t\\u006fol":{"definition":{"type":"advisor_1"}}}]}]'),
    ['{"model":"cheap","tools":[{"mo', 'del":"de', 'ar"}]}'],
    ['{"model":"cheap","tools":[{"mod\\', 'u0065l"', ':', '"dear"}]}'],
  ]
  for (const body of refused) assert.equal(await post(body), 'model_not_allowed', String(body))
  assert.equal(bodies.length, 0, 'nothing that was refused has reached a model')
  const schema =
    '{"type":"object","properties":{"model":{"type":"string"}},"examples":[{"model":"x"}],"required":["model"]}'
  const allowed = [
    tool(`"parameters":${schema}`),
    tool(`"input_schema":{"model":"x"},"input_examples":[{"model":"x"}]`),
    named(`"response_format":{"json_schema":{"schema":{"default":{"model":"x"}}}}`),
    named('"tools":[{"name":"model","model":"cheap","models":["cheap"],"description":"\\" \\\\"}]'),
    named('"messages":[{"content":[{"type":"tool_use","input":{"model":"x","tools":[{"model":"x"}]}}],"model":"x"}]'),
    named('"messages":[{"content":[{"from":{"model":"x"}}]}],"metadata":{"model":"x"},"system":[{"model":"x"}]'),
    named('"input":[{"type":"additional_tools","tools":[{"name":"f","parameters":{"properties":{"model":{}}}}]}]'),
    named('"prompt":{"id":"p","variables":{"model":"x"}},"a":{"model":null,"b":{"model":{"c":"x"}}}'),
  ]
  for (const body of allowed) assert.equal(await post(body), 200, body)
})

const price = { inputCentsPerMillion: 100, outputCentsPerMillion: 100 }
const cheap = '{"model":"cheap"}'
/** Answers with a usage of so many tokens: a cent is 10,000 of them. */
const tells =
  (tokens: number) =>
  ({ response }: Asked): void =>
    void response
      .writeHead(200, { 'content-type': 'application/json' })
      .end(JSON.stringify({ usage: { prompt_tokens: tokens, completion_tokens: 0 } }))

test('a stolen token spends what is left of the budget, and what it used is known whatever anybody says', async (t) => {
  const { post, used, bodies } = await thief(t, { budget: { cents: 2, price }, respond: tells(10_000) })
  assert.deepEqual([await post(cheap), await post(cheap)], [200, 200])
  for (let more = 0; more < 3; more++) assert.equal(await post(cheap), 'run_budget_spent')
  assert.equal(bodies.length, 2, 'nothing that was refused has reached a model')
  const usage = { type: 'usage', inputTokens: 10_000, outputTokens: 0, model: 'openai/cheap' }
  assert.deepEqual(used, [usage, usage])
})

test('what a stolen token refers to costs as much as it may, where the model server does not tell what it was', async (t) => {
  const image = 'data:image/png;base64,AAAA'
  const bodies: readonly (readonly [string, number?])[] = [
    ['"messages":[{"content":"https://example.com/a file_id"}]'],
    ['"messages":[{"content":[{"type":"image_url","image_url":{"url":"https://example.com/a"}}]}]', 1_000_000],
    [
      `"messages":[{"content":[{"image_url":{"url":"${image}"}},{"image_url":"${image.replace('/', '\\/')}"}]}]`,
      20_000,
    ],
    ['"messages":[{"content":[{"source":{"type":"url","url":"https://example.com/a"}}]}]', 1_000_000],
    ['"messages":[{"content":[{"source":{"x":{"source":{}},"url":"https://example.com/a"}}]}]', 1_000_000],
    ['"messages":[{"content":[{"source":{"type":"file","file_id":"f"}}]}]', 1_000_000],
    ['"messages":[{"content":[{"source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}]', 10_000],
    ['"messages":[{"content":[{"source":{"type":"base64","media_type":"application/pdf","data":"A"}}]}]', 1_000_000],
    ['"messages":[{"content":[{"file":{"file_data":"data:application/pdf;base64,AAAA"}}]}]', 1_000_000],
    ['"input":[{"content":[{"type":"input_file","file_\\u0075rl":"https://example.com/a"}]}]', 1_000_000],
    ['"input":[{"type":"item_r\\u0065ference","id":"i"}]', 1_000_000],
    ['"previous_response_id":"r"', 1_000_000],
    ['"conversation":{"id":"c"}', 1_000_000],
    ['"container":"c"', 1_000_000],
    ['"prompt":{"id":"p"}', 1_000_000],
    ['"prompt":"text","previous_response_id":null,"conversation":null,"user":"u","a":{"url":"https://example.com"}'],
    ['"messages":[{"content":[{"type":"tool_use","input":{"file_id":"f","source":{"url":"https://a"}}}]}]'],
  ]
  const { post, used } = await thief(t, {
    now: () => 0,
    respond: ({ response }) =>
      void response.writeHead(200, { 'content-type': 'text/event-stream' }).end('data: {}\n\n'),
  })
  for (const [rest, tokens] of bodies) {
    const body = `{"model":"cheap",${rest}}`
    assert.equal(await post(body), 200, rest)
    const { inputTokens, estimated } = used.pop()!
    assert.deepEqual([inputTokens, estimated], [tokens ?? Math.ceil(body.length / 4), true], rest)
  }
  const told = await thief(t, { respond: tells(7) })
  assert.equal(await told.post('{"model":"cheap","previous_response_id":"r"}'), 200)
  assert.equal(told.used[0]!.inputTokens, 7)
})

test('a call under way that refers to something holds the budget until it is known what it cost', async (t) => {
  const asked: Asked[] = []
  const { post } = await thief(t, { budget: { cents: 50, price }, respond: (one) => void asked.push(one) })
  const first = post('{"model":"cheap","previous_response_id":"r"}')
  await until(() => asked.length === 1, 'it reaches the model')
  assert.equal(await post(cheap), 'too_many_model_calls')
  tells(10_000)(asked.pop()!)
  assert.equal(await first, 200)
  const second = post(cheap)
  await until(() => asked.length === 1, 'there is budget left')
  tells(1)(asked.pop()!)
  assert.equal(await second, 200)
})

test('however many calls a stolen token makes at once, so many reach a model and no more', async (t) => {
  const asked: Asked[] = []
  const { post, used } = await thief(t, { budget: { cents: 1, price }, respond: (one) => void asked.push(one) })
  const outcomes = Array.from({ length: 20 }, () => post(cheap))
  await until(() => asked.length === callsAtOnce, 'they reach the model')
  assert.equal(await post(cheap), 'too_many_model_calls')
  asked.forEach(tells(50_000))
  const all = await Promise.all(outcomes)
  assert.equal(all.filter((one) => one === 200).length, callsAtOnce)
  // Calls that arrive after the first ones have ended find the budget spent.
  for (const one of all)
    assert.ok(['200', 'too_many_model_calls', 'run_budget_spent'].includes(String(one)), String(one))
  assert.equal(await post(cheap), 'run_budget_spent')
  assert.deepEqual([asked.length, used.length], [callsAtOnce, callsAtOnce])
})

test('a call of a stolen token ends with its run, and what it had used is known', async (t) => {
  let left = 0
  const { send, calls, used } = await thief(t, {
    respond({ response }) {
      response.once('close', () => left++)
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write('data: {"choices":[]}\n\n')
    },
    now: () => 0,
  })
  const reply = await send('chat/completions', cheap)
  const reader = reply.body!.getReader()
  await reader.read()
  assert.deepEqual(calls.end(), [
    { type: 'usage', model: 'openai/cheap', inputTokens: 5, outputTokens: 1, estimated: true },
  ])
  await assert.rejects(reader.read())
  await until(() => left === 1, 'the model server is left')
  const late = await send('chat/completions', cheap)
  assert.deepEqual([late.status, ((await late.json()) as { error: string }).error], [409, 'no_run_under_way'])
  assert.deepEqual(used, [])
})

test('a stolen token leaves no call behind: those that it gives up are counted, none works on in the background', async (t) => {
  const asked: Asked[] = []
  const { send, post, used, bodies } = await thief(t, { respond: (one) => void asked.push(one), now: () => 0 })
  const caller = new AbortController()
  const given = send('chat/completions', cheap, { signal: caller.signal })
  await until(() => asked.length === 1, 'it reaches the model')
  caller.abort()
  await assert.rejects(given)
  await until(() => used.length === 1, 'it is counted')
  assert.deepEqual([used[0]!.inputTokens, used[0]!.estimated], [5, true])
  for (const value of ['true', '"true"', '1', '[false]', '{"a":false}', ' \n true']) {
    for (const key of ['background', 'Background'])
      assert.equal(await post(`{"${key}":${value},"model":"cheap"}`), 'model_call_in_background', value)
  }
  assert.equal(bodies.length, 1)
  for (const value of ['false', 'null']) {
    const reply = post(`{"model":"cheap","background":${value},"metadata":{"background":true}}`)
    await until(() => asked.length > 1, 'it is let through')
    tells(1)(asked.pop()!)
    assert.equal(await reply, 200, value)
  }
})

test('a stolen token cannot have its answers compressed, where their usage could not be read', async (t) => {
  const seen: unknown[] = []
  const { post, used } = await thief(t, {
    respond(asked) {
      seen.push(asked.headers['accept-encoding'])
      tells(7)(asked)
    },
  })
  assert.equal(await post(cheap, 'openai', { 'accept-encoding': 'gzip, br' }), 200)
  assert.deepEqual([seen, used[0]!.inputTokens], [['identity'], 7])
})

test('to count tokens, and to be refused by the model server, uses nothing', async (t) => {
  const counting = await thief(t, { model: 'anthropic/cheap', respond: tells(9) })
  for (const path of ['messages/count_tokens', 'v1/messages/count_tokens'])
    assert.equal((await counting.send(path, cheap, { provider: 'anthropic' })).status, 200)
  const refused = await thief(t, { respond: ({ response }) => void response.writeHead(429).end('{"usage":{}}') })
  assert.equal((await refused.send('chat/completions', cheap)).status, 429)
  assert.deepEqual([counting.used, refused.used], [[], []])
})
