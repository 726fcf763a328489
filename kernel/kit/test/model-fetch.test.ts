import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { test } from 'node:test'
import { createModelConnections } from '#kit/models'

test('an answer that is longer than its reader takes at once arrives whole', async (t) => {
  const text = Array.from({ length: 20_000 }, (_, i) => `data: ${i}\n\n`).join('')
  // Chunks of the transfer coding that straddle the reads of the socket, as a fast model server writes them.
  const pieces = text.match(/[^]{1,23001}/g) ?? []
  const server = createServer((_request, response) => {
    for (const piece of pieces) response.write(piece)
    response.end()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  const connections = createModelConnections()
  t.after(() => connections.close())
  const { port } = server.address() as { port: number }
  const url = new URL(`http://127.0.0.1:${port}/`)
  const answer = await connections.post(url, { headers: {}, body: ['{}'] })
  const chunks: Uint8Array[] = []
  for (let some = await answer.read(); some; some = await answer.read()) {
    chunks.push(...some)
    // Slower than the server: reads are held back.
    await new Promise((resolve) => setImmediate(resolve))
  }
  assert.ok(Buffer.concat(chunks).toString() === text)
  const response = await connections.fetch(url, { method: 'POST', body: '{}' })
  let received = ''
  for await (const part of response.body!.pipeThrough(new TextDecoderStream())) received += part
  assert.equal(received.length, text.length)
  assert.ok(received === text)
})
