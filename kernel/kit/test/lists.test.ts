import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Type } from '@sinclair/typebox'
import fastify from 'fastify'
import { beginOf } from '#contracts/runs'
import { openStreams } from '../../http/streams.ts'
import { paceLists, sendItems } from '../lists.ts'

test('each part of a long list is read when it is its turn, and meanwhile others are answered', async (t) => {
  const app = fastify()
  await app.register(openStreams)
  t.after(() => app.close())
  const turns: { readonly chars: number; readonly grant: () => void }[] = []
  paceLists(app as never, (_request, chars) => new Promise((resolve) => turns.push({ chars, grant: resolve })))
  let read = 0
  async function* rest() {
    while (read < 3) yield [`part ${++read}`]
  }
  const item = Type.String()
  app.get('/list', (request, reply) => sendItems(request, reply, { items: ['first'], rest: rest() }, { item }))
  app.get('/page', (request, reply) => sendItems(request, reply, { items: ['first'] }, { item }))
  const url = await app.listen({ port: 0, host: '127.0.0.1' })
  const body = (await fetch(`${url}/list`)).body!.pipeThrough(new TextDecoderStream()).getReader()
  let text = ''
  for (const part of [0, 1, 2, 3]) {
    text += (await body.read()).value ?? ''
    // What is one part takes no turn of its own.
    assert.deepEqual(await (await fetch(`${url}/page`)).json(), ['first'])
    assert.deepEqual([read, turns.length], [part, part + 1])
    turns[part]!.grant()
  }
  for (;;) {
    const { done, value } = await body.read()
    if (done) break
    text += value
  }
  assert.deepEqual(JSON.parse(text), ['first', 'part 1', 'part 2', 'part 3'])
  assert.deepEqual(
    turns.map(({ chars }) => chars),
    [8, 9, 9, 9],
  )
})

test('the beginning of a text ends between characters, however many units they have', () => {
  const texts = ['', 'ab', 'abcd', '😀😀😀😀', 'a😀b😀c', '\ud83dabcd', 'abc\ud83d', '😀'.repeat(3)]
  for (const text of texts) assert.equal(beginOf(text, 3), [...text].slice(0, 3).join(''))
})
