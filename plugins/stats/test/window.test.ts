import assert from 'node:assert/strict'
import { test } from 'node:test'
import { gridOf, rangeOf } from '../window.ts'

const now = new Date('2026-03-10T10:07:30.500Z')
const hours = 3_600_000

test('a window ends now and begins exactly its length before', () => {
  for (const [window, length] of [
    ['5m', 300_000],
    ['1h', hours],
    ['168h', 168 * hours],
    ['7d', 168 * hours],
    ['90s', 90_000],
    ['30d', 720 * hours],
  ] as const) {
    const range = rangeOf(window, now)
    assert.deepEqual([range.window, range.end, +range.end - +range.start], [window, now, length])
  }
})

test('a window of more than 30 days is cut to that, and says so', () => {
  for (const window of ['31d', '721h', '9'.repeat(39) + 'd']) {
    const range = rangeOf(window, now)
    assert.deepEqual([range.window, +range.end - +range.start], ['720h', 720 * hours])
  }
})

test('what is no duration is 400 and says what is', () => {
  for (const window of [
    '',
    '24',
    'h',
    '1 h',
    '-1h',
    '1.5h',
    '1h30m',
    '1w',
    'P1D',
    '24H',
    ' 24h',
    '24h\n',
    '0h',
    '00ms',
  ])
    assert.throws(() => rangeOf(window, now), { status: 400, code: 'invalid_request' }, JSON.stringify(window))
  assert.throws(() => rangeOf('x', now), /window must be a duration such as 5m, 24h or 7d/)
})

test('the grid is whole multiples of the bucket in UTC and holds the window', () => {
  for (const [query, bucket, count] of [
    [{ window: '5m' }, '1m', 6],
    [{ window: '1h' }, '1m', 61],
    [{ window: '6h' }, '5m', 73],
    [{}, '15m', 97],
    [{ window: '168h' }, '1h', 169],
    [{ window: '30d' }, '1d', 31],
    [{ window: '30d', bucket: '6h' }, '6h', 121],
    [{ window: '1d', bucket: '1m' }, '1m', 1_441],
    [{ window: '1ms', bucket: '1d' }, '1d', 1],
  ] as const) {
    const grid = gridOf(query, now)
    assert.deepEqual([grid.bucket, grid.starts.length], [bucket, count], JSON.stringify(query))
    assert.ok(grid.starts.every((start) => start % grid.size === 0))
    assert.ok(grid.starts[0]! <= +grid.start && grid.starts[0]! + grid.size > +grid.start)
    assert.ok(grid.starts.at(-1)! < +now && grid.starts.at(-1)! + grid.size >= +now)
  }
})

test('a window that ends where a bucket does has no bucket behind it', () => {
  const grid = gridOf({ window: '1h' }, new Date('2026-03-10T10:00:00Z'))
  assert.equal(grid.starts.length, 60)
  assert.equal(new Date(grid.starts.at(-1)!).toISOString(), '2026-03-10T09:59:00.000Z')
})

test('buckets too small for their window are 400', () => {
  assert.throws(() => gridOf({ window: '30d', bucket: '15m' }, now), {
    status: 400,
    message: /bucket makes 2881 of this window; at most 1500/,
  })
})
