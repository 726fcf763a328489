import assert from 'node:assert/strict'
import { test } from 'node:test'
import { countingTurns } from '#testing'
import { Mask } from '../texts.ts'

async function* inPieces(bytes: Buffer, size: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size)
}

async function masked(mask: Mask, text: string, size: number): Promise<string> {
  const parts: Buffer[] = []
  for await (const part of mask.stream(inPieces(Buffer.from(text, 'latin1'), size))) parts.push(Buffer.from(part))
  return Buffer.concat(parts).toString('latin1')
}

test('values are hidden in every form, whatever pieces an answer comes in and whatever is around them', async () => {
  const value = 'abab"abababa b/é+'
  const bytes = Buffer.from(value, 'latin1')
  const forms = [
    value,
    bytes.toString('hex'),
    encodeURIComponent(value),
    Buffer.from(JSON.stringify(value).slice(1, -1)).toString('latin1'),
    Buffer.from(value).toString('latin1'),
  ]
  // It begins like another value, and like itself once more.
  const mask = new Mask([value, 'abab"ababab', 'zzzzzzzz'])
  const text = ['abab"', ...forms, 'ab'].join('abab"ab ab') + 'z'.repeat(20)
  const expected = ['abab"', ...forms.map((form) => '*'.repeat(form.length)), 'ab'].join('abab"ab ab') + '*'.repeat(20)
  assert.equal(mask.text(text), expected)
  for (const size of [1, 2, 3, 7, 50, text.length]) assert.equal(await masked(mask, text, size), expected, String(size))
  for (const before of ['', 'x', 'xy']) {
    const coded = Buffer.from(`${before}${value} and more`, 'latin1').toString('base64')
    const hidden = await masked(mask, coded, 5)
    assert.match(hidden, /\*{20}/)
    assert.ok(!hidden.includes(bytes.subarray(3, 12).toString('base64').slice(1, 10)), hidden)
  }
})

test('only what may be the beginning of a value is held back', async () => {
  const mask = new Mask(['abcdefghijkl'])
  const sent: string[] = []
  for await (const part of mask.stream(inPieces(Buffer.from('....abcdef....abcd'), 10))) sent.push(part.toString())
  assert.deepEqual(sent, ['....', 'abcdef....', 'abcd'])
})

test('others have their turns while an answer is searched that was made to take long', async () => {
  const half = 'a'.repeat(8_000)
  const mask = new Mask(Array.from({ length: 8 }, (_, i) => `${half}${i}${half}`))
  const size = 64 * 1024
  // All of it is one piece that is there already.
  const { value: hidden, turns } = await countingTurns(() => masked(mask, 'a'.repeat(size), size))
  assert.equal(hidden, 'a'.repeat(size))
  assert.ok(turns > 2, String(turns))
})
