import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { workerPaths } from '#contracts/wire/worker'
import { begin, startHub } from './hub.ts'

// What a program in a sandbox can do with the token of its worker, which it can read; docs/security.md lists it.

async function thief(t: TestContext, model = 'openai/cheap') {
  const bodies: string[] = []
  const server = createServer(async (request, response) => {
    const parts: Buffer[] = []
    try {
      for await (const part of request) parts.push(part as Buffer)
    } catch {
      return
    }
    bodies.push(`${request.headers['content-type']} ${Buffer.concat(parts).toString()}`)
    response.end('"pong"')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => void (server.closeAllConnections(), server.close()))
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`
  const hub = await startHub(t, {
    models: { openai: { apiKey: 'k', baseUrl: url }, anthropic: { apiKey: 'k', baseUrl: url } },
  })
  const { channel } = await hub.open()
  const run = new AbortController()
  const reading = begin(channel, { profile: { model } }, run.signal).next()
  reading.catch(() => {})
  const paths = workerPaths(channel.sessionId)
  /** Whole, or in parts that are sent one after the other. */
  const post = async (body: string | readonly string[], provider = 'openai', headers = {}): Promise<unknown> => {
    const parts = typeof body === 'string' ? body : ReadableStream.from(body.map((part) => Buffer.from(part)))
    const init = { method: 'POST', body: parts, duplex: 'half' } as RequestInit
    const authorization = `Bearer ${channel.token}`
    const reply = await fetch(
      `${hub.urls['workers']}${paths.models(provider)}/chat/completions`.replace(
        'anthropic/chat/completions',
        'anthropic/messages',
      ),
      {
        ...init,
        headers: { authorization, ...headers },
      },
    )
    const text = await reply.text()
    return reply.status === 200 ? 200 : (JSON.parse(text) as { error: string }).error
  }
  return { post, bodies, run, reading }
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
  // Whatever it says of itself, the body is read as JSON that is not compressed.
  const form = { 'content-type': 'application/x-www-form-urlencoded', 'content-encoding': 'gzip' }
  assert.equal(await post('{"model":"cheap"}', 'openai', form), 200)
  assert.equal(bodies.length, allowed.length + 1, 'nothing that was refused has reached a model')
  for (const body of bodies) assert.match(body, /^application\/json /)
  run.abort(new Error('the run is over'))
  await reading.catch(() => {})
  assert.equal(await post('{"model":"cheap"}'), 'no_run_under_way')
})
