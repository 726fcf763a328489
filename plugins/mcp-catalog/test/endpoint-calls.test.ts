import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import { startExternalServer, type TestBody } from '#testing'
import { connected, namesOf, speaker, tokenOf } from './speaker.ts'
import { catalog, stage } from './stage.ts'

// Calls through the endpoint that fail, take long or are cancelled.

test('a server that is away, silent or unwilling costs its own tools, with a sentence', async (t) => {
  const huge = 'x'.repeat(5 * 1024 * 1024)
  const server = await startExternalServer(t, {
    read: {},
    large: { run: async () => huge },
    slow: { run: () => new Promise(() => {}) },
  })
  const gone = 'http://127.0.0.1:1/mcp'
  const at = await stage(t, { own: [server.url, gone], settings: { callTimeout: '3s' } })
  await at.call('POST', catalog, { name: 'files', url: server.url })
  await at.call('POST', catalog, { name: 'gone', url: gone })
  const speak = speaker(at, await tokenOf(at.call))
  assert.deepEqual(namesOf(await speak.tools()), ['files__read', 'files__large', 'files__slow'])
  const said = async (name: string): Promise<string> => {
    const called = (await speak.call(name)) as { text: string; isError: boolean }
    assert.equal(called.isError, true)
    return called.text
  }
  assert.match(await said('gone__read'), /cannot be called.*cannot be reached/)
  assert.match(await said('files__large'), /larger than 4 MiB/)
  assert.match(await said('files__slow'), /took longer than 3 s/)
  // The server forgets its sessions, as a restart does.
  server.forget()
  assert.deepEqual(await speak.call('files__read'), { text: 'read done', isError: false })
  server.before = (_, response) => (response.writeHead(401).end(), true)
  server.forget()
  assert.match(await said('files__read'), /does not accept the credentials/)
})

test('progress reaches whoever asks for it, and a cancelled call is cancelled at its server', async (t) => {
  let aborted = 0
  const server = await startExternalServer(t, {
    steps: {
      run: async (_input, _announce, { progress }) => {
        for (const step of [1, 2]) await progress(step, 2)
        return 'done'
      },
    },
    wait: {
      run: (_input, _announce, { signal }) =>
        new Promise((resolve) =>
          signal.addEventListener('abort', () => (aborted++, resolve('stopped')), { once: true }),
        ),
    },
  })
  const at = await stage(t, { own: [server.url] })
  await at.call('POST', catalog, { name: 'files', url: server.url })
  const client = await connected(t, at, await tokenOf(at.call))
  const seen: unknown[] = []
  const called = await client.callTool({ name: 'files__steps' }, undefined, {
    onprogress: ({ progress, total }) => void seen.push([progress, total]),
  })
  assert.deepEqual(called.content, [{ type: 'text', text: 'done' }])
  assert.deepEqual(seen, [
    [1, 2],
    [2, 2],
  ])
  // The client cancels its request and keeps the connection open.
  const cancel = new AbortController()
  const waiting = client.callTool({ name: 'files__wait' }, undefined, { signal: cancel.signal })
  waiting.catch(() => {})
  while (!server.calls.includes('wait')) await turn()
  cancel.abort()
  await assert.rejects(waiting)
  while (aborted < 1) await turn()
  // The client closes the connection.
  const again = client.callTool({ name: 'files__wait' })
  again.catch(() => {})
  while (server.calls.filter((name) => name === 'wait').length < 2) await turn()
  await client.close()
  while (aborted < 2) await turn()
})

test('a call is cancelled at whichever conductor hears of it, and by nobody else', async (t) => {
  let aborted = 0
  const server = await startExternalServer(t, {
    wait: {
      run: (_input, _announce, { signal }) =>
        new Promise((resolve) => signal.addEventListener('abort', () => (aborted++, resolve('stopped')))),
    },
  })
  const at = await stage(t, { own: [server.url] })
  const other = await stage(t, { dsn: at.dsn })
  await at.call('POST', catalog, { name: 'files', url: server.url })
  const [mine, theirs] = [await tokenOf(at.call), await tokenOf(at.call)]
  const session = { 'mcp-session-id': 'a-session' }
  const called = speaker(at, mine).post({ id: 7, method: 'tools/call', params: { name: 'files__wait' } }, session)
  while (server.calls.length === 0) await turn()
  const cancel = { id: undefined, method: 'notifications/cancelled', params: { requestId: 7 } }
  for (const [token, headers] of [
    [theirs, session],
    [mine, {}],
    [mine, { 'mcp-session-id': 'another' }],
  ] as const) {
    assert.equal((await speaker(other, token).post(cancel, headers)).status, 202)
  }
  assert.equal(aborted, 0)
  // A new conductor may not have heard of the other one yet. A cancellation that it sends is lost then.
  while (aborted < 1) assert.equal((await speaker(other, mine).post(cancel, session)).status, 202)
  const { result } = (await called).body as { result: TestBody }
  assert.equal(result['isError'], true)
})
