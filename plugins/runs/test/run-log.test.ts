import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { LogChunk } from '#contracts/runs'
import { createRunLog } from '../run-log.ts'

const never = new AbortController().signal
const delta = (seq: number): LogChunk => ({ firstSeq: seq, count: 1, lines: Buffer.from(`{"seq":${seq}}\n`) })

/** A log and the store behind it, which counts who has to look there. */
function staged(most?: number) {
  const all: LogChunk[] = []
  const looked: number[] = []
  const log = createRunLog(async (after) => {
    looked.push(after)
    return { status: 'running', chunks: all.filter(({ firstSeq }) => firstSeq > after) }
  }, most)
  const append = (count: number): void => {
    for (let i = 0; i < count; i++) {
      const chunk = delta(log.lastSeq + 1)
      all.push(chunk)
      log.append(chunk)
      log.stored(chunk.firstSeq)
    }
  }
  return { log, looked, append }
}

async function read(chunks: AsyncGenerator<LogChunk>, count: number): Promise<number[]> {
  const seqs: number[] = []
  while (seqs.length < count) seqs.push((await chunks.next()).value!.firstSeq)
  return seqs
}
const upTo = (last: number): number[] => Array.from({ length: last }, (_, i) => i + 1)

test('a log that all watchers have seen keeps little, and who comes later reads the rest from the store', async () => {
  const { log, looked, append } = staged()
  const watcher = log.follow(0, never)
  for (let round = 0; round < 10; round++) {
    append(50)
    await read(watcher, 50)
  }
  assert.deepEqual(looked, [])
  assert.deepEqual(await read(log.follow(0, never), 500), upTo(500))
  assert.deepEqual(looked, [0])
  assert.deepEqual(await read(log.follow(480, never), 20), upTo(500).slice(480))
  assert.deepEqual(looked, [0], 'the newest are still here')
})

test('for a watcher that is behind the log is kept, up to a bound; beyond it the store has it', async () => {
  const { log, looked, append } = staged(200_000)
  append(1)
  const behind = log.follow(0, never)
  await read(behind, 1)
  append(300)
  assert.deepEqual(await read(behind, 300), upTo(301).slice(1))
  assert.deepEqual(looked, [])
  append(1_000)
  assert.deepEqual(await read(behind, 1_000), upTo(1_301).slice(301))
  assert.equal(looked.length, 1)
})

test('what is not stored yet stays, whatever it weighs', async () => {
  const { log, looked } = staged()
  for (let seq = 1; seq <= 5_000; seq++) log.append(delta(seq))
  assert.deepEqual(await read(log.follow(0, never), 5_000), upTo(5_000))
  assert.deepEqual(looked, [])
})
