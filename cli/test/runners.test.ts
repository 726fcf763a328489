import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { createSigner } from '../../plugins/auth/signing/signer.ts'
import { run } from './spawned.ts'

const key = Buffer.alloc(32, 7)

/** The internal listener of a conductor: it checks signatures as the real one does, and answers every call with this. */
async function conductor(t: TestContext, status: number, answer: object) {
  const signer = createSigner({
    family: 'chat-gateway',
    current: key,
    kv: { backend: 'redis', claim: async () => true } as never,
    onRefused() {},
  })
  const asked: string[] = []
  const server = createServer(async (request: IncomingMessage, reply) => {
    let text = ''
    for await (const chunk of request) text += chunk
    const parts = { method: request.method!, target: request.url!, body: Buffer.from(text) }
    const verified = await signer.verify(request.headers, parts).then(
      () => true,
      () => false,
    )
    asked.push(`${request.method} ${request.url} ${text}`)
    reply.setHeader('content-type', 'application/json')
    if (verified) reply.writeHead(status).end(JSON.stringify(answer))
    else reply.writeHead(401).end('{"error":"unauthorized"}')
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.after(() => server.close())
  const env = {
    CONDUCTOR_INTERNAL_URL: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    CHAT_GATEWAY_SIGNING_KEY_CURRENT: key.toString('base64'),
  }
  return { env, asked, call: (...args: string[]) => run(t, ['runners', ...args], env) }
}

test('runners are added, drained and removed by signed calls of the internal listener', async (t) => {
  const runner = { url: 'http://10.0.0.7:7060', hash: '00000001', state: 'draining' }
  const { call, asked } = await conductor(t, 200, runner)
  for (const what of ['drain', 'undrain', 'remove']) {
    const { code, stdout } = await call(what, '00000001')
    assert.deepEqual([code, JSON.parse(stdout)], [0, runner])
  }
  await call('add')
  await call('add', 'http://10.0.0.8:7060')
  assert.deepEqual(asked, [
    'POST /internal/topology/drain {"hash":"00000001"}',
    'POST /internal/topology/undrain {"hash":"00000001"}',
    'POST /internal/topology/remove {"hash":"00000001"}',
    'POST /internal/topology/reconcile ',
    'POST /internal/topology/reconcile {"urls":["http://10.0.0.8:7060"]}',
  ])
})

test('what the conductor refuses, and what is missing, is said in a sentence', async (t) => {
  const { call, env } = await conductor(t, 404, { error: 'not_found', message: 'No runner has this hash.' })
  const unknown = await call('drain', 'ffffffff')
  assert.equal(unknown.code, 1)
  assert.match(unknown.stderr, /the conductor answers 404 No runner has this hash\./)
  const forged = { ...env, CHAT_GATEWAY_SIGNING_KEY_CURRENT: Buffer.alloc(32, 1).toString('base64') }
  assert.match(
    (await run(t, ['runners', 'add'], forged)).stderr,
    /401 unauthorized; is CHAT_GATEWAY_SIGNING_KEY_CURRENT/,
  )
  const missing = await run(t, ['runners', 'add'])
  assert.deepEqual([missing.code, missing.stdout], [2, ''])
  assert.match(missing.stderr, /CONDUCTOR_INTERNAL_URL/)
  const away = await run(t, ['runners', 'add'], { ...env, CONDUCTOR_INTERNAL_URL: 'http://127.0.0.1:9' })
  assert.equal(away.code, 1)
  assert.match(away.stderr, /nothing answers at http:\/\/127\.0\.0\.1:9/)
})
