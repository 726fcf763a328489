import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { testKernel } from '#testing'
import echo from '../../examples/echo-runtime/index.ts'
import signing from '../../plugins/auth/signing/index.ts'
import kv from '../../plugins/kv/index.ts'
import runHost from '../../plugins/run-host/index.ts'
import { run } from './spawned.ts'

/** `key`: it answers nobody who does not sign with it. */
async function echoSidecar(t: TestContext, key?: string): Promise<string> {
  const host = { name: 'run-host', plugin: runHost, config: { drain: '0s', mode: 'echo' } }
  const door = { family: 'runner', current: key, listeners: ['sidecar'] }
  const proof = [
    { name: 'kv', plugin: kv, config: { withoutRedis: 'memory' } },
    { name: 'signing', plugin: signing, config: door },
  ]
  const plugins = [echo, host, ...(key === undefined ? [] : proof)]
  const { urls } = await testKernel(t, plugins, { listen: true, listeners: ['sidecar'] })
  return urls['sidecar']!
}

const prompts = ['--say', '{word}', '--hang', 'wait', '--tell', '{word}', '--ask', 'recall']

test('conformance passes a sidecar that keeps the contract', async (t) => {
  const { code, stdout, stderr } = await run(t, ['conformance', 'sidecar', '--url', await echoSidecar(t), ...prompts])
  assert.equal(code, 0, stdout + stderr)
  assert.match(stdout, /the state of a session moves to another host/)
  assert.match(stdout, /fail 0/)
})

test('conformance proves who it is to a sidecar that demands it, with the key of its environment', async (t) => {
  const key = randomBytes(32).toString('base64')
  const url = await echoSidecar(t, key)
  const check = (RUNNER_SIGNING_KEY_CURRENT: string) =>
    run(t, ['conformance', 'sidecar', '--url', url, ...prompts], {
      RUNNER_SIGNING_KEY_CURRENT,
    })
  const { code, stdout, stderr } = await check(key)
  assert.equal(code, 0, stdout + stderr)
  assert.match(stdout, /fail 0/)
  for (const [other, says] of [
    ['', /requires authentication: set RUNNER_SIGNING_KEY_CURRENT/],
    [randomBytes(32).toString('base64'), /requires authentication/],
    ['short', /RUNNER_SIGNING_KEY_CURRENT must be base64 of at least 32 bytes/],
  ] as const) {
    const refused = await check(other)
    assert.equal(refused.code, 2, refused.stdout)
    assert.match(refused.stderr, says)
  }
})

test('conformance fails a sidecar in another language that forgets the last event, and names the promise', async (t) => {
  const server = createServer((request, response) => {
    if (request.url === '/health') return void response.end('{"ok":true,"runtime":"stranger"}')
    request.resume()
    response
      .writeHead(200, { 'content-type': 'application/x-ndjson' })
      .end('{"type":"assistant","text":"hi","delta":true}\n')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    server.close()
    server.closeAllConnections()
  })
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const { code, stdout, stderr } = await run(t, [
    'conformance',
    'sidecar',
    '--url',
    url,
    '--no-state',
    '--reporter',
    'tap',
  ])
  assert.equal(code, 1)
  assert.match(stdout, /not ok \d+ - stranger: a run ends with exactly one result/)
  assert.match(stderr, /does not meet the contract/)
})

test('conformance says that nobody answers, and asks which of several runtimes is meant', async (t) => {
  const nobody = await run(t, ['conformance', 'sidecar', '--url', 'http://127.0.0.1:1'])
  assert.equal(nobody.code, 1)
  assert.match(nobody.stderr, /no sidecar answers at http:\/\/127\.0\.0\.1:1\/health/)
  const host = { name: 'run-host', plugin: runHost, config: { drain: '0s' } }
  const { urls } = await testKernel(t, [echo, host], { listen: true, listeners: ['sidecar'] })
  const several = await run(t, ['conformance', 'sidecar', '--url', urls['sidecar']!])
  assert.equal(several.code, 2)
  assert.match(several.stderr, /--runtime/)
})
