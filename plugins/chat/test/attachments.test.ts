import assert from 'node:assert/strict'
import { test } from 'node:test'
import { gateway, publish, sql } from './gateway.ts'

const image = { mediaType: 'image/png', data: 'aGVsbG8=', name: 'dot.png' }

test('what comes with a message goes to the run; the conversation keeps its names alone', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  const attachments = [image, { mediaType: 'application/pdf', data: 'aGVsbG8=' }]
  const post = (payload: object) => app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
  const first = await post({ message: 'What is it?', attachments })
  assert.equal(first.statusCode, 200, first.body)
  const { conversation_id } = first.json<{ conversation_id: string }>()
  await post({ message: 'And this?', conversation_id, attachments: [image] })
  await post({ message: 'Thanks', conversation_id, attachments: [] })
  assert.deepEqual(
    dispatch.started.map((task) => task.attachments),
    [attachments, [image], undefined],
  )
  const history = await app.inject({ url: `${agent.url}/conversations/${conversation_id}`, headers: agent.auth })
  const { messages } = history.json<{ messages: { role: string; attachments?: unknown }[] }>()
  assert.deepEqual(
    messages.filter(({ role }) => role === 'user').map((message) => message.attachments),
    [
      [{ name: 'dot.png', mediaType: 'image/png' }, { mediaType: 'application/pdf' }],
      [{ name: 'dot.png', mediaType: 'image/png' }],
      undefined,
    ],
  )
  assert.ok(messages.every((message) => message.role === 'user' || !('attachments' in message)))
  const stored = await sql(database, 'acme', 'SELECT attachments FROM messages')
  assert.doesNotMatch(JSON.stringify(stored), /aGVsbG8/)
})

test('what is no attachment is refused before anything is written', async (t) => {
  const { app, database, dispatch } = await gateway(t)
  const agent = await publish(database)
  for (const [attachments, status] of [
    [[{ ...image, data: 'not base64!' }], 400],
    [[{ ...image, data: 'abc' }], 400],
    [[{ ...image, mediaType: 'png' }], 400],
    [[{ mediaType: 'image/png', url: 'http://x.test' }], 400],
    [Array.from({ length: 21 }, () => image), 400],
    [[{ ...image, data: 'A'.repeat(1_000_000) }], 413],
  ] as const) {
    const payload = { message: 'x', attachments }
    const reply = await app.inject({ method: 'POST', url: agent.url, headers: agent.auth, payload })
    assert.equal(reply.statusCode, status, reply.body)
  }
  assert.deepEqual(await sql(database, 'acme', 'SELECT id FROM conversations'), [])
  assert.equal(dispatch.started.length, 0)
})
