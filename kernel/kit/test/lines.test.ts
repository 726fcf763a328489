import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { createLineQueue, linesOf, maxLineBytes, OversizedLineError, startOnRead, wholeLines } from '#kernel'

async function* from(parts: readonly Uint8Array[]): AsyncGenerator<Uint8Array> {
  for (const part of parts) yield part
}

/** The bytes cut at the given places. */
function cut(bytes: Buffer, places: readonly number[]): Buffer[] {
  const at = [...new Set(places.map((p) => p % (bytes.length + 1)))].sort((a, b) => a - b)
  return [0, ...at].map((start, i) => bytes.subarray(start, at[i] ?? bytes.length))
}

const read = async (parts: readonly Uint8Array[]): Promise<string[]> => {
  const lines: string[] = []
  for await (const chunk of wholeLines(from(parts))) {
    assert.equal(chunk.at(-1), 0x0a, 'a chunk ends with its last line')
    for (const line of linesOf(chunk)) lines.push(line.toString('utf8'))
  }
  return lines
}

test('lines come out whole wherever the network cuts them, multi-byte characters included', async () => {
  const line = fc.string({ unit: 'grapheme', maxLength: 20 }).map((s) => s.replaceAll('\n', ' '))
  await fc.assert(
    fc.asyncProperty(fc.array(line), fc.array(fc.nat(), { maxLength: 20 }), async (lines, places) => {
      const bytes = Buffer.from(lines.map((l) => `${l}\n`).join(''), 'utf8')
      assert.deepEqual(
        await read(cut(bytes, places)),
        lines.filter((l) => l !== ''),
      )
    }),
  )
})

test('a last line without its newline is torn and dropped', async () => {
  assert.deepEqual(await read([Buffer.from('{"a":1}\n{"b":'), Buffer.from('2}')]), ['{"a":1}'])
})

test('a line over 4 MiB ends the stream', async () => {
  const part = Buffer.alloc(1024 * 1024, 0x61)
  const parts = Array.from({ length: maxLineBytes / part.length + 1 }, () => part)
  await assert.rejects(read(parts), OversizedLineError)
})

test('all lines of one turn leave a queue as one chunk, in order', async () => {
  const queue = createLineQueue()
  const chunks: string[] = []
  const reading = (async () => {
    for await (const chunk of queue) chunks.push(chunk.toString())
  })()
  await new Promise((resolve) => setImmediate(resolve))
  for (const text of ['a\n', 'b\n', 'c\n']) void queue.push(text)
  await new Promise((resolve) => setTimeout(resolve))
  await new Promise((resolve) => setImmediate(resolve))
  void queue.push('d\n')
  queue.close()
  await reading
  assert.equal(chunks[0], 'a\nb\nc\n')
  assert.equal(chunks.join(''), 'a\nb\nc\nd\n')
})

test('the writer waits while 256 KiB are unread, and goes on when they are read', async () => {
  const queue = createLineQueue()
  const line = `${'x'.repeat(1023)}\n`
  let pushed = 0
  let waiting: Promise<void> | undefined
  while (!waiting) {
    waiting = queue.push(line)
    pushed++
  }
  assert.equal(pushed, 256)
  const reader = queue[Symbol.asyncIterator]()
  const { value } = (await reader.next()) as { value: Buffer }
  await waiting
  assert.equal(value.length, 256 * 1024)
  await reader.return?.()
})

test('what was pushed before the end is delivered, then the failure is thrown', async () => {
  const queue = createLineQueue()
  void queue.push('a\n')
  queue.close(new Error('upstream'))
  const got: string[] = []
  const reading = (async () => {
    for await (const chunk of queue) got.push(chunk.toString())
  })()
  await assert.rejects(reading, /upstream/)
  assert.deepEqual(got, ['a\n'])
})

test('a reader that leaves frees its writer', async () => {
  const queue = createLineQueue()
  const reader = queue[Symbol.asyncIterator]()
  void queue.push('a\n')
  await reader.next()
  let waiting: Promise<void> | undefined
  while (!waiting) waiting = queue.push(`${'x'.repeat(64 * 1024)}\n`)
  await reader.return?.()
  await waiting
  assert.equal(queue.push('more\n'), undefined, 'nothing is kept for a reader that is gone')
})

test('what begins with its first read is refused there, and begins at most once', async () => {
  let begun = 0
  const refused = startOnRead<string>(() => {
    begun++
    throw new Error('no')
  })
  assert.equal(begun, 0)
  await assert.rejects(refused.next(), /no/)
  assert.deepEqual(await Array.fromAsync(refused), [])
  assert.equal(begun, 1)
  const left = startOnRead(() => assert.fail('nobody reads it'))
  await left.return!()
  assert.deepEqual(await Array.fromAsync(left), [])
  const source = ['a', 'b'].values()
  assert.deepEqual(await Array.fromAsync(startOnRead(() => ({ next: async () => source.next() }))), ['a', 'b'])
})
