import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Calls } from '../inspector.ts'
import { entered } from '../coverage.ts'

const texts: Record<string, string> = {
  a: 'function once() {}',
  b: 'async function* follow() {}',
  c: 'function tick() {}',
  d: 'async *[Symbol.asyncIterator]() {}',
}
const called = (file: string, count: number, name = file): Calls => ({
  file,
  name,
  from: 0,
  to: texts[file]!.length,
  count,
})
const enter = (busy: readonly Calls[], idle: readonly Calls[]) =>
  entered({ busy, idle, chats: 10, textOf: (file) => texts[file]! })

test('a file is entered when chats call a function of it, not when the clock does', () => {
  const { files } = enter([called('a', 10), called('c', 41)], [called('c', 40)])
  assert.deepEqual(files, ['a'])
})

test('a function that the clock calls as well counts for what chats add to it', () => {
  assert.deepEqual(enter([called('c', 50)], [called('c', 40)]).files, ['c'])
})

test('generators are told by their text', () => {
  const { generators } = enter([called('a', 10), called('b', 20), called('d', 10)], [])
  assert.deepEqual(generators, [
    { file: 'b', name: 'b', perChat: 2 },
    { file: 'd', name: 'd', perChat: 1 },
  ])
})
