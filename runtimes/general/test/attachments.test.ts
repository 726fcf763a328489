import assert from 'node:assert/strict'
import { test } from 'node:test'
import { bareSidecar, collectRun, terminalOf, testEnvelope, startExternalServer } from '#testing'
import { generalOnStandIn, model, pixel, signed } from './support.ts'

const sessionId = 'sess-00000000-0000000f'
const image = { mediaType: 'image/png', data: pixel, name: 'dot.png' }
const base64 = (text: string): string => Buffer.from(text).toString('base64')

test('an image goes to the model with the prompt, also in the next run and on another host', async (t) => {
  const { runtime } = await generalOnStandIn(t)
  const session = { ...model, sessionId }
  await collectRun(bareSidecar(runtime), testEnvelope({ ...session, prompt: 'What is it?', attachments: [image] }))
  const bundle = (await runtime.exportState!(sessionId))!
  const other = await generalOnStandIn(t)
  await other.runtime.hydrate!(sessionId, bundle)
  await collectRun(bareSidecar(other.runtime), testEnvelope({ ...session, prompt: 'And now?' }))
  const [first, , now] = other.server.requests[0]!.body.messages
  assert.deepEqual(first!.content, [
    { type: 'image_url', image_url: { url: `data:image/png;base64,${pixel}` } },
    { type: 'text', text: 'What is it?' },
  ])
  assert.equal(now!.content, 'And now?')
})

test('a document goes as a file, text of any kind as text', async (t) => {
  const { runtime, server } = await generalOnStandIn(t)
  const attachments = [
    { mediaType: 'application/pdf', data: base64('%PDF-1.4'), name: 'a.pdf' },
    { mediaType: 'text/csv', data: base64('a,b\n1,2'), name: 'b.csv' },
    { mediaType: 'application/json', data: base64('{"ü":1}') },
  ]
  await collectRun(bareSidecar(runtime), testEnvelope({ ...model, prompt: 'Read.', attachments }))
  const content = server.requests[0]!.body.messages[0]!.content as Record<string, unknown>[]
  assert.deepEqual(
    content.map((part) => part['type']),
    ['file', 'text', 'text', 'text'],
  )
  assert.deepEqual(content[0]!['file'], {
    filename: 'a.pdf',
    file_data: `data:application/pdf;base64,${base64('%PDF-1.4')}`,
  })
  assert.equal(content[1]!['text'], 'File b.csv (text/csv):\na,b\n1,2')
  assert.equal(content[2]!['text'], 'File without a name (application/json):\n{"ü":1}')
})

test('a kind of file that no message can hold ends the run with a sentence', async (t) => {
  const { runtime } = await generalOnStandIn(t)
  const attachments = [{ mediaType: 'application/zip', data: base64('PK') }]
  const terminal = terminalOf(await collectRun(bareSidecar(runtime), testEnvelope({ ...model, attachments })))
  assert.ok(terminal.type === 'error')
  assert.match(terminal.message, /does not accept something in this run/)
})

for (const { profile } of [model, signed]) {
  test(`an image that a tool returns is shown to ${profile.model} when it can look at images`, async (t) => {
    const files = await startExternalServer(t, {
      shoot: {
        run: async () => [
          { type: 'text', text: 'here' },
          { type: 'image', mimeType: 'image/png', data: pixel },
          { type: 'audio', mimeType: 'audio/wav', data: pixel },
        ],
      },
    })
    const ask = async (images: boolean): Promise<{ results: string[]; sent: string }> => {
      const { runtime, server } = await generalOnStandIn(t, {}, { models: { [profile.model]: { images } } })
      server.next({ toolCalls: [{ id: 'a', name: 'mcp__cam__shoot', arguments: {} }] })
      const mcpServers = [{ name: 'cam', url: files.url }]
      const events = await collectRun(bareSidecar(runtime), testEnvelope({ profile, mcpServers }))
      assert.equal(terminalOf(events).type, 'result')
      const results = events.flatMap((event) => (event.type === 'tool_result' ? [event.content] : []))
      return { results, sent: JSON.stringify(server.requests.at(-1)!.body.messages) }
    }
    const seen = await ask(true)
    assert.deepEqual(seen.results, ['here\n[image]\n[audio]'])
    assert.equal(seen.sent.split(pixel).length, 2, 'the picture is there once')
    assert.match(seen.sent, profile === model.profile ? /"image_url"/ : /"type":"image"/)
    const blind = await ask(false)
    assert.equal(blind.sent.includes(pixel), false)
    assert.match(blind.sent, /\[image\]/)
  })
}
