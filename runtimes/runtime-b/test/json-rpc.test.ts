import assert from 'node:assert/strict'
import { once } from 'node:events'
import { PassThrough } from 'node:stream'
import { test } from 'node:test'
import type { AppServer } from '../app-server.ts'
import { createRpcClient, RpcClosed, RpcRefused, RpcTimeout, RpcViolation } from '../json-rpc.ts'
import { createListener, patience } from '../thread.ts'

/** A client and the other end of its pipes. */
function pipes() {
  const input = new PassThrough()
  const output = new PassThrough()
  const say = (...messages: unknown[]): void => {
    for (const message of messages) output.write(`${JSON.stringify(message)}\n`)
  }
  const heard = async (): Promise<Record<string, unknown>> => {
    if (input.readableLength === 0) await once(input, 'readable')
    return JSON.parse(String(input.read()).split('\n')[0]!) as Record<string, unknown>
  }
  return { rpc: createRpcClient(input, output), output, say, heard }
}
const minute = 60_000

test('answers find their questions, in whatever order and however they are cut', async () => {
  const { rpc, output } = pipes()
  const [one, two] = [rpc.request('one', {}, minute), rpc.request('two', {}, minute)]
  const lines = '{"id":2,"result":"zwei"}\n{"id":1,"result":"eins"}\n'
  output.write(lines.slice(0, 30))
  output.write(lines.slice(30))
  assert.deepEqual(await Promise.all([one, two]), ['eins', 'zwei'])
})

test('an error refuses its request, and one that nobody answers times out alone', async () => {
  const { rpc, say } = pipes()
  const refused = rpc.request('a', {}, minute)
  say({ id: 1, error: { code: -1, message: 'no' } })
  await assert.rejects(refused, RpcRefused)
  await assert.rejects(rpc.request('b', {}, 1), RpcTimeout)
  const later = rpc.request('c', {}, minute)
  say({ id: 2, result: 'too late' }, { id: 3, result: 'in time' })
  assert.equal(await later, 'in time')
})

test('whatever the process asks is refused: nobody approves anything', async () => {
  const { say, heard } = pipes()
  say({ id: 'x', method: 'item/commandExecution/requestApproval', params: {} })
  const answer = await heard()
  assert.equal(answer['id'], 'x')
  assert.equal((answer['error'] as { code: number }).code, -32_601)
})

test('notifications come in their order, and the process waits for a reader who does not read', async () => {
  const { rpc, say, output } = pipes()
  const many = Array.from({ length: 5_000 }, (_, n) => ({ method: 'n', params: n }))
  say(...many)
  // Whatever was read by now is bounded; the rest stays in the pipe.
  for (let turn = 0; turn < 100; turn++) await new Promise((resolve) => setImmediate(resolve))
  assert.ok(output.readableLength > 0, 'the pipe is not emptied into memory')
  output.end()
  const got: unknown[] = []
  for await (const { params } of rpc.notifications) got.push(params)
  assert.deepEqual(
    got,
    many.map(({ params }) => params),
  )
})

for (const [what, line] of [
  ['no JSON', 'panicked at main.rs\n'],
  ['no object', '7\n'],
  ['neither an answer nor a notification', '{"hello":1}\n'],
  ['a line without an end', 'x'.repeat(17 * 1024 * 1024)],
] as const) {
  test(`a process that writes ${what} breaks the protocol: everything that waits is told`, async () => {
    const { rpc, output } = pipes()
    const asked = rpc.request('a', {}, minute)
    output.write(line)
    await assert.rejects(asked, RpcViolation)
    await assert.rejects(rpc.request('b', {}, minute), RpcViolation)
    await assert.rejects(Array.fromAsync(rpc.notifications), RpcViolation)
  })
}

test('the end of the output ends what waits', async () => {
  const { rpc, output } = pipes()
  const asked = rpc.request('a', {}, minute)
  output.end()
  await assert.rejects(asked, RpcClosed)
  assert.deepEqual(await Array.fromAsync(rpc.notifications), [])
})

test('silence is nobody’s fault while a tool is at work, and the process is asked whose it is', async () => {
  const { rpc, say, heard } = pipes()
  let stopped = 0
  const server: AppServer = { rpc, ending: undefined, lastWords: '', stop: async () => void stopped++ }
  const listen = createListener(server, { ...patience, silenceMs: 5, answerMs: minute })
  let looks = 0
  const working = (): boolean => {
    if (++looks === 3) say({ method: 'item/completed', params: {} })
    return true
  }
  assert.equal((await listen(working)).method, 'item/completed')
  assert.deepEqual([looks, stopped], [3, 0])
  void listen().catch(() => {})
  const asked = await heard()
  assert.equal(asked['method'], 'thread/loaded/list')
  say({ id: asked['id'], result: {} })
})
