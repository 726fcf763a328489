import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { workerPaths } from '#contracts/wire/worker'
import { begin, startHub, until } from './hub.ts'

/** A server that answers when the test does. */
async function upstreamOf(t: TestContext) {
  const waiting: ServerResponse[] = []
  const server = createServer((request, response) => {
    request.resume()
    waiting.push(response)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  const answer = (): void => {
    for (const response of waiting.splice(0)) response.writeHead(200, { 'content-type': 'application/json' }).end('{}')
  }
  return { waiting, answer, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }
}

/** A worker with a run, and the status or error of what it asks. */
async function workerOf(t: TestContext) {
  const upstream = await upstreamOf(t)
  const { open, urls } = await startHub(t, { models: { openai: { baseUrl: upstream.url } } })
  const { channel } = await open()
  const paths = workerPaths(channel.sessionId)
  const servers = ['one', 'two'].map((name) => ({ name, url: `${upstream.url}/mcp` }))
  const start = (): AbortController => {
    const run = new AbortController()
    begin(channel, { mcpServers: servers }, run.signal)
      .next()
      .catch(() => {})
    return run
  }
  const fetched = (path: string, method = 'GET', listener = 'workers'): Promise<Response> =>
    fetch(urls[listener]! + path, {
      method,
      headers: { authorization: `Bearer ${channel.token}` },
      ...(method === 'POST' ? { body: '{}' } : {}),
    })
  const ask = async (...request: Parameters<typeof fetched>): Promise<unknown> => {
    const reply = await fetched(...request)
    return ((await reply.json()) as { error?: string }).error ?? reply.status
  }
  return { upstream, paths, start, fetched, ask }
}

test('what is asked of an MCP server ends with the run, whether it has been answered or not', async (t) => {
  const { upstream, paths, start, fetched, ask } = await workerOf(t)
  const run = start()
  const stream = fetched(paths.mcpServer('one'))
  await until(() => upstream.waiting.length === 1, 'it reaches the server')
  upstream.waiting[0]!.writeHead(200, { 'content-type': 'text/event-stream' }).write('data: 1\n\n')
  const answer = await stream
  const call = ask(paths.mcpServer('one'), 'POST')
  await until(() => upstream.waiting.length === 2, 'it reaches the server')
  const closed = upstream.waiting.map((response) => once(response, 'close'))
  run.abort(new Error('over'))
  await Promise.all(closed)
  await assert.rejects(answer.text())
  assert.equal(await call, 'no_run_under_way')
})

test('requests to an MCP server are counted for each server of a run, whichever listener they come to', async (t) => {
  const { upstream, paths, start, ask } = await workerOf(t)
  const run = start()
  const asked = Array.from({ length: 32 }, (_, at) =>
    ask(paths.mcpServer('one'), 'POST', at % 2 ? 'runner' : 'workers'),
  )
  await until(() => upstream.waiting.length === 32, 'they reach the server')
  assert.equal(await ask(paths.mcpServer('one'), 'GET'), 'too_many_mcp_requests')
  const other = ask(paths.mcpServer('two'), 'POST')
  await until(() => upstream.waiting.length === 33, 'it reaches the server')
  upstream.answer()
  assert.deepEqual(new Set(await Promise.all([...asked, other])), new Set([200]))
  const again = ask(paths.mcpServer('one'), 'POST')
  await until(() => upstream.waiting.length === 1, 'what was answered counts no longer')
  upstream.answer()
  assert.equal(await again, 200)
  run.abort(new Error('over'))
})

test('lists of models are counted too, which a worker may ask for without a run', async (t) => {
  const { upstream, paths, ask } = await workerOf(t)
  const list = `${paths.models('openai')}/models`
  const asked = Array.from({ length: 16 }, () => ask(list))
  await until(() => upstream.waiting.length === 16, 'they reach the server')
  assert.equal(await ask(list), 'too_many_model_lists')
  upstream.answer()
  assert.deepEqual(new Set(await Promise.all(asked)), new Set([200]))
  const again = ask(list)
  await until(() => upstream.waiting.length === 1, 'what was answered counts no longer')
  upstream.answer()
  assert.equal(await again, 200)
})
