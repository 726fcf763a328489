import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { LogChunk } from '#contracts/run-event'
import type { RunStatus } from '#contracts/runs'
import { follow, RunLog } from '../log.ts'
import { memoryKv } from './stage.ts'

const never = new AbortController().signal
const delta = (seq: number, word = 'word'): LogChunk => ({
  firstSeq: seq,
  count: 1,
  lines: Buffer.from(`{"type":"assistant","seq":${seq},"text":"${word}"}\n`),
})
const ending = (seq: number): LogChunk => ({
  firstSeq: seq,
  count: 1,
  lines: Buffer.from(`{"type":"error","seq":${seq}}\n`),
})

/** A log in memory, and a store behind it that records which readers had to ask it. */
function staged(most?: number) {
  const stored: LogChunk[] = []
  const looked: number[] = []
  const log = new RunLog(most)
  const s = {
    log,
    looked,
    stored,
    status: 'running' as RunStatus,
    live: log as RunLog | undefined,
    append(count: number): void {
      for (let i = 0; i < count; i++) {
        const chunk = delta(log.lastSeq + 1)
        stored.push(chunk)
        log.append(chunk)
        log.stored(chunk.firstSeq)
      }
    },
    follow: (after: number) =>
      follow(
        {
          store: {
            async readLog(_tenant, _run, seq) {
              looked.push(seq)
              return { status: s.status, chunks: stored.filter(({ firstSeq }) => firstSeq > seq) }
            },
            readEnding: async () => stored.at(-1),
          },
          kv: memoryKv(),
          live: () => s.live,
        },
        'acme',
        'r1',
        after,
        never,
      ),
  }
  return s
}

async function read(chunks: AsyncIterator<LogChunk>, count: number): Promise<number[]> {
  const seqs: number[] = []
  while (seqs.length < count) seqs.push((await chunks.next()).value!.firstSeq)
  return seqs
}
const upTo = (last: number): number[] => Array.from({ length: last }, (_, i) => i + 1)

test('a log that all readers have seen keeps little, and who comes later reads the rest from the store', async () => {
  const { looked, append, ...s } = staged()
  const reader = s.follow(0)
  append(1)
  await read(reader, 1)
  for (let round = 0; round < 10; round++) {
    append(50)
    await read(reader, 50)
  }
  assert.deepEqual(looked, [])
  assert.deepEqual(await read(s.follow(0), 501), upTo(501))
  assert.deepEqual(looked, [0])
  assert.deepEqual(await read(s.follow(495), 6), upTo(501).slice(495))
  assert.deepEqual(looked, [0], 'the newest are still here')
})

test('for a reader that is behind the log is kept, up to a bound; beyond it the store has it', async () => {
  const { looked, append, ...s } = staged(200_000)
  append(1)
  const behind = s.follow(0)
  await read(behind, 1)
  append(300)
  assert.deepEqual(await read(behind, 300), upTo(301).slice(1))
  assert.deepEqual(looked, [])
  append(1_000)
  assert.deepEqual(await read(behind, 1_000), upTo(1_301).slice(301))
  assert.equal(looked.length, 1)
})

test('what is not stored yet stays, whatever it weighs', async () => {
  const s = staged()
  for (let seq = 1; seq <= 5_000; seq++) s.log.append(delta(seq))
  assert.deepEqual(await read(s.follow(0), 5_000), upTo(5_000))
  assert.deepEqual(s.looked, [])
})

test('the ending is told to whoever is at it or past it', async () => {
  const s = staged()
  s.live = undefined
  s.stored.push(delta(1), ending(2))
  s.status = 'interrupted'
  for (const after of [0, 1, 2, 7, 2 ** 30]) {
    const seen: number[] = []
    for await (const chunk of s.follow(after)) seen.push(chunk.firstSeq)
    assert.deepEqual(seen, after === 0 ? [1, 2] : [2], `behind ${after}`)
  }
})

test('whoever waits only for the ending of a run that executes here is told it without the store', async () => {
  const s = staged()
  s.append(1)
  const waiting = s.follow(2 ** 30).next()
  s.log.append({ firstSeq: 2, count: 2, lines: Buffer.concat([delta(2).lines, ending(3).lines]) })
  for (const told of [await waiting, await s.follow(3).next()]) {
    assert.deepEqual(told.value, ending(3))
  }
  assert.deepEqual(s.looked, [])
})

test('a reader of a run that was taken away goes on where it is if the run does, and goes back if it went another way', async () => {
  for (const same of [true, false]) {
    const s = staged()
    s.append(2)
    const reader = s.follow(0)
    // This event was shown, and not yet stored when the run was taken over.
    s.log.append(delta(3))
    s.log.append(delta(4))
    assert.deepEqual(await read(reader, 4), [1, 2, 3, 4])
    s.stored.push(delta(3, same ? 'word' : 'other'), delta(4), delta(5), ending(6))
    s.status = 'error'
    s.live = undefined
    s.log.detach()
    assert.deepEqual(await read(reader, same ? 2 : 4), same ? [5, 6] : [3, 4, 5, 6])
    assert.equal((await reader.next()).done, true)
  }
})
