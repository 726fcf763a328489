import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { emptyFolder, run } from './spawned.ts'

interface Asked {
  readonly url: string | undefined
  readonly authorization: string | undefined
  readonly body: unknown
}

/** A gateway that answers every request with this text; what it was asked is in `asked`. */
async function gateway(t: TestContext, status: number, type: string, text: string) {
  const asked: Asked[] = []
  const server = createServer(async (request: IncomingMessage, reply) => {
    let body = ''
    for await (const chunk of request) body += chunk
    asked.push({ url: request.url, authorization: request.headers.authorization, body: JSON.parse(body) })
    reply.writeHead(status, { 'content-type': type }).end(text)
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.after(() => server.close())
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, asked }
}

const chat = async (t: TestContext, url: string, ...more: string[]) =>
  run(t, ['chat', 'support', 'hello', '--data', await emptyFolder(t), '--url', url, '--key', 'ao_k', ...more])

const sse = 'text/event-stream'

test('chat sends the message with the key and prints each event as a JSON line when piped', async (t) => {
  const frames =
    'event: delta\ndata: {"text":"Hé"}\n\n: ping\n\nevent: delta\ndata: {"text":"llo"}\n\n' +
    'event: done\ndata: {"public_run_id":"prun_1","conversation_id":"conv_1","message":"Héllo"}\n\n'
  const { url, asked } = await gateway(t, 200, sse, frames)
  const { code, stdout } = await chat(t, url, '--tenant', 'acme', '--conversation', 'conv_1')
  assert.equal(code, 0)
  assert.deepEqual(asked, [
    {
      url: '/v1/chat/acme/support/stream',
      authorization: 'Bearer ao_k',
      body: { message: 'hello', conversation_id: 'conv_1' },
    },
  ])
  const events = stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
  assert.deepEqual(
    events.map((e) => e.event),
    ['delta', 'delta', 'done'],
  )
  assert.equal(events[2].message, 'Héllo')
})

test('an error event, a stream cut short, and a refusal are exit code 1 and one sentence', async (t) => {
  const failing = await gateway(t, 200, sse, 'event: error\ndata: {"code":"upstream","message":"no model"}\n\n')
  const failed = await chat(t, failing.url)
  assert.equal(failed.code, 1)
  assert.equal(failed.stderr, 'agent-orc: upstream: no model\n')
  const torn = await chat(t, (await gateway(t, 200, sse, 'event: delta\ndata: {"text":"He"}\n\n')).url)
  assert.equal(torn.code, 1)
  assert.match(torn.stderr, /ended before the answer did/)
  const refused = await chat(t, (await gateway(t, 401, 'application/json', '{"error":"unauthorized"}')).url)
  assert.equal(refused.code, 1)
  assert.match(refused.stderr, /401 unauthorized/)
})

test('chat without a gateway says what to start, and an agent without a key asks for one', async (t) => {
  const folder = await emptyFolder(t)
  const none = await run(t, ['chat', 'support', 'hello', '--data', folder])
  assert.equal(none.code, 2)
  assert.match(none.stderr, /start agent-orc dev first/)
  const away = await chat(t, 'http://127.0.0.1:9')
  assert.equal(away.code, 1)
  assert.match(away.stderr, /nothing answers at http:\/\/127\.0\.0\.1:9/)
})

test('an address that is no http URL is a usage error in one sentence, not a stack', async (t) => {
  for (const url of ['notaurl', 'localhost:8090', 'ftp://127.0.0.1']) {
    const { code, stderr } = await chat(t, url)
    assert.equal(code, 2, url)
    assert.match(stderr, /^agent-orc: --url .* is not the URL of a gateway; it looks like \S+\n$/)
  }
})
