import assert from 'node:assert/strict'
import { test } from 'node:test'
import { aims, type Results } from '../load/report.ts'
import type { StreamsSample } from '../load/streams.ts'

const streams = (count: number, change: Partial<StreamsSample> = {}): StreamsSample => ({
  streams: count,
  openedMs: 1,
  lateP50: 1,
  lateP99: count > 1_000 ? 199 : 49,
  openingLateP99: 1,
  errors: 0,
  memory: Object.fromEntries(
    ['gateway', 'conductor', 'runner', 'sidecar'].map((role) => [role, { residentKb: 60, heapKb: 40 }]),
  ),
  cores: {},
  ...change,
})

const results = (
  one: readonly StreamsSample[],
  two: readonly StreamsSample[],
  leftOut: readonly number[] = [],
): Results => ({
  rate: 50,
  runs: [],
  streams: [
    ...one.map((sample) => ({ target: 'one pair', sample })),
    ...two.map((sample) => ({ target: 'two pairs', sample })),
  ],
  leftOut,
  chats: [],
})

const missed = (of: Results): string[] =>
  aims(of)
    .filter(({ met }) => !met)
    .map(({ aim }) => aim)

test('5,000 streams: one pair within 200 ms, and neither form refuses one', () => {
  assert.deepEqual(missed(results([streams(5_000)], [streams(5_000, { lateP99: 900 })])), [])
  assert.deepEqual(missed(results([streams(5_000, { lateP99: 201 })], [streams(5_000, { errors: 1 })])), [
    'one pair, 5000 streams: lateness p99 ms at most 200',
    'two pairs, 5000 streams: refused or failed at most 0',
  ])
})

test('1,000 streams: every role holds at most 64 KiB for each', () => {
  const fat = { gateway: { residentKb: 10, heapKb: 65 }, sidecar: { residentKb: 65, heapKb: 10 } }
  const memory = { ...streams(1_000).memory, ...fat }
  assert.deepEqual(missed(results([streams(1_000, { memory })], [streams(1_000)])), [
    'one pair, 1000 streams: gateway, resident KiB per stream at most 64',
    'one pair, 1000 streams: sidecar, resident KiB per stream at most 64',
  ])
})

test('what could not be opened is not met', () => {
  assert.deepEqual(missed(results([], [], [5_000])), ['5000 streams: refused or failed at most 0'])
})
