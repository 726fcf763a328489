import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Secrets } from '#contracts/secrets'
import { type CallContext, Calls, type CallsOptions, type HttpCall, requestOf } from '../calls.ts'
import { Evaluator } from '../evaluator.ts'
import { startEffects } from './stage.ts'

const context: CallContext = {
  tenantId: 'acme',
  key: 'key',
  attempt: 1,
  signal: new AbortController().signal,
  enter: async () => {},
}

test('what is sent with secrets is bounded when it is sent, whoever wrote it when', async (t) => {
  const { url, effects } = await startEffects(t)
  const { port } = new URL(url)
  const evaluator = new Evaluator()
  const secrets: Pick<Secrets, 'headers'> = {
    headers: async (_, headers) =>
      Object.fromEntries(Object.keys(headers).map((name) => [name, 'v'.repeat(name === 'long' ? 16_385 : 16_384)])),
  }
  const calls = new Calls({
    evaluator,
    secrets,
    allowHosts: [{ host: '127.0.0.1', port, tenants: { allows: () => true, empty: false } }],
  } as unknown as CallsOptions)
  t.after(() => calls.close())
  const send = (names: readonly string[], header = ''): ReturnType<Calls['http']> => {
    const call: HttpCall = {
      url,
      method: 'GET',
      headers: { 'x-sent': header },
      secrets: new Set(names),
      body: undefined,
      isJson: false,
      expect: undefined,
    }
    return calls.http(call, context)
  }
  const names = Array.from({ length: 9 }, (_, i) => `s${i}`)
  assert.ok('output' in (await send(names.slice(1))))
  await assert.rejects(send(names), { code: 'secret_unfit' })
  await assert.rejects(send(['long']), { code: 'secret_unfit' })
  // An input may repeat what stands for a secret.
  await assert.rejects(send(['s0'], 'secret://s0 '.repeat(65)), /headers have more than 1048576 characters/)
  const scope = { json: { input: JSON.stringify('x'.repeat(2 ** 20)) }, nodes: [] }
  const long = { id: 'a', type: 'http', url, headers: { 'x-sent': '{{ input }}' } } as const
  await assert.rejects(requestOf(evaluator, 'acme', long, scope), /headers have more than 1048576 characters/)
  assert.equal(effects.length, 1)
})
