import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { Webhook } from 'standardwebhooks'
import { chat } from './client.ts'
import { eventually, forms, startCluster } from './cluster.ts'

interface Told {
  readonly headers: Record<string, string>
  readonly body: string
}

async function receiver(t: TestContext): Promise<{ url: string; told: Told[] }> {
  const told: Told[] = []
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    told.push({ headers: request.headers as Record<string, string>, body: Buffer.concat(chunks).toString() })
    response.writeHead(204).end()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`, told }
}

for (const form of forms) {
  test(`${form}: the end of a run is told to its webhook, however it ended`, async (t) => {
    const { url, told } = await receiver(t)
    const cluster = await startCluster(t, form, {
      env: {
        AGENT_ORC_WEBHOOK_KEY: randomBytes(32).toString('base64'),
        AGENT_ORC_WEBHOOK_ALLOW_HOSTS: `${new URL(url).host}=default`,
      },
      apart: ['conductor'],
    })
    await cluster.api('POST', '/api/profiles', { name: 'writer', model: 'openai/stand-in' })
    const { secret } = (await cluster.api<{ secret: string }>('GET', '/api/webhooks/secret')).body
    const run = async (id: string): Promise<void> => {
      const reply = await cluster.api('POST', '/api/runs', { id, profile: 'writer', prompt: 'hello', webhook: { url } })
      assert.equal(reply.status, 202, JSON.stringify(reply.body))
    }
    const publicMessageOf = (id: string) =>
      eventually(`the end of ${id} is told`, async () => {
        for (const { body, headers } of told) {
          const message = new Webhook(secret).verify(body, headers) as { data: { runId: string; status: string } }
          if (message.data.runId === id) return message.data
        }
        return undefined
      })
    await run('well')
    assert.equal((await publicMessageOf('well')).status, 'ok')

    // A published agent sends a message about the end of each chat.
    const agent = await cluster.agent('greeter', { publish: { webhookUrl: url } })
    await chat(agent, { message: 'hello' })
    await eventually('the end of a chat is told', async () => told.length === 2)
    await cluster.api('PATCH', '/api/profiles/greeter/published', { webhookUrl: null })
    await chat(agent, { message: 'hello' })

    cluster.model.next({ text: 'never ends', hangAfter: 1 }, { text: 'never ends', hangAfter: 1 })
    await run('cut')
    await cluster.api('DELETE', '/api/runs/cut')
    assert.equal((await publicMessageOf('cut')).status, 'cancelled')

    // The other one may have been cancelled before its model call.
    const asked = cluster.model.requests.length
    await run('orphan')
    await eventually('the model was asked', async () => cluster.model.requests.length > asked)
    await cluster.kill('conductor')
    await cluster.start('conductor')
    assert.equal((await publicMessageOf('orphan')).status, 'interrupted')
    assert.equal(new Set(told.map(({ headers }) => headers['webhook-id'])).size, 4)
  })
}

test('a webhook that may not be asked is refused before the run begins', async (t) => {
  const cluster = await startCluster(t, 'single', {
    env: { AGENT_ORC_WEBHOOK_KEY: randomBytes(32).toString('base64') },
  })
  await cluster.api('POST', '/api/profiles', { name: 'writer', model: 'openai/stand-in' })
  const start = (url: string) =>
    cluster.api<{ error: string }>('POST', '/api/runs', { profile: 'writer', prompt: 'hello', webhook: { url } })
  for (const url of ['https://169.254.169.254/', 'http://example.com/', 'nonsense', 'https://[::1]/']) {
    const { status, body } = await start(url)
    assert.deepEqual([status, body.error], [400, 'invalid_webhook'], url)
  }
  assert.deepEqual((await cluster.api('GET', '/api/runs')).body, [])
})
