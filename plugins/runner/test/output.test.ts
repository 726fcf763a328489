import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { linesOf } from '#kernel'
import { RunOutput } from '../output.ts'
import { run } from './fixtures.ts'

const never = new AbortController().signal
const nobody = { readerGone() {}, readerCame() {} }
const lineOf = (seq: number, length: number): string => `${seq} ${'x'.repeat(length)}\n`
const seqsOf = (chunk: Buffer): number[] => [...linesOf(chunk)].map((line) => parseInt(line.toString(), 10))

test('behind any event that is kept another reader gets each line once, however it was written and read', async () => {
  const writes = fc.array(fc.record({ count: fc.nat(5), length: fc.nat(3_000), read: fc.boolean() }), { maxLength: 60 })
  await fc.assert(
    fc.asyncProperty(writes, fc.integer({ min: 1, max: 9 }), fc.nat(60_000), async (chunks, firstSeq, limit) => {
      const output = new RunOutput(run({ firstSeq, keepMs: 1 }), () => limit, nobody)
      output.show()
      const first = output.attach({ afterSeq: firstSeq - 1, epoch: 0 }, never)
      let next = firstSeq
      for (const { count, length, read } of chunks) {
        const lines = Array.from({ length: count }, (_, i) => lineOf(next + i, length)).join('')
        output.write(Buffer.from(lines), (next += count))
        if (read && !output.isRead) await first.next()
      }
      output.close()
      while (!(await first.next()).done);
      const refused: number[] = []
      for (let afterSeq = firstSeq - 1; afterSeq < next; afterSeq++) {
        const rest = []
        try {
          const reader = output.attach({ afterSeq, epoch: 0 }, never)
          for (let read = await reader.next(); !read.done; read = await reader.next()) rest.push(...seqsOf(read.value))
        } catch (error) {
          assert.equal((error as { code?: string }).code, 'run_gap')
          refused.push(afterSeq)
          continue
        }
        assert.deepEqual(
          rest,
          Array.from({ length: next - 1 - afterSeq }, (_, i) => afterSeq + 1 + i),
        )
      }
      // Only the oldest lines are gone; a reader that has read everything lacks nothing.
      assert.deepEqual(
        refused,
        Array.from(refused, (_, i) => firstSeq - 1 + i),
      )
      assert.ok(!refused.includes(next - 1))
      assert.equal(output.isRead, true)
    }),
    { numRuns: 300 },
  )
})

test('what was read weighs no more than its bound, and a run that is not to be kept keeps nothing', async () => {
  for (const keepMs of [1, 0]) {
    const limit = 16 * 1024
    const output = new RunOutput(run({ keepMs }), () => limit, nobody)
    output.show()
    const reader = output.attach({ afterSeq: 0, epoch: 0 }, never)
    for (let seq = 1; seq <= 2_000; seq++) {
      output.write(Buffer.from(lineOf(seq, 150)), seq + 1)
      await reader.next()
      assert.ok(output.bytes <= (keepMs > 0 ? limit : 0))
    }
    // One line that is larger than what may be kept.
    output.write(Buffer.from(lineOf(2_001, 1_000_000)), 2_002)
    await reader.next()
    assert.equal(output.bytes, 0)
    assert.throws(() => output.attach({ afterSeq: 2_000, epoch: 0 }, never), { code: 'run_gap' })
    output.attach({ afterSeq: 2_001, epoch: 0 }, never)
  }
})

test('a reader that waits is told of the end, of a failure, and that it was cut off', async () => {
  const ends: [(output: RunOutput) => void, RegExp | undefined][] = [
    [(output) => output.close(), undefined],
    [(output) => output.cut(), undefined],
    [(output) => output.close(new Error('refused')), /refused/],
  ]
  for (const [end, failure] of ends) {
    const output = new RunOutput(run({ keepMs: 1 }), () => 1_000, nobody)
    output.show()
    const waiting = output.attach({ afterSeq: 0, epoch: 0 }, never).next()
    end(output)
    if (failure) await assert.rejects(waiting, failure)
    else assert.equal((await waiting).done, true)
  }
})
