import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { createReader } from '../reader.ts'
import { readSeries } from '../series.ts'
import { gridOf } from '../window.ts'
import { type Meter, statsKernel } from './kernel.ts'

const now = new Date('2026-03-10T10:07:30.500Z')
const at = (time: string): string => `2026-03-10T${time}Z`

test('a window takes in its first instant and leaves out its end; every bucket is there', async (t) => {
  const { database, meters, insert } = await statsKernel(t)
  await meters(
    { at: at('10:02:30.499') },
    { at: at('10:02:30.500'), tokens: [10, 5, 2], toolCalls: 3, microcents: 1_500_000 },
    { at: at('10:02:59.999'), status: 'error', microcents: null },
    { at: at('10:03:00.000'), status: 'cancelled' },
    { at: at('10:07:30.499'), status: 'interrupted' },
    { at: at('10:07:30.500') },
    { at: at('10:05:00.000'), tenant: 'globex' },
  )
  const usage = (meter: string, minute: string, amount: number, recorded = minute) => ({
    meter,
    subject: 's',
    minute: at(minute),
    recorded_at: at(recorded),
    amount,
  })
  await insert(
    'acme',
    'usage_meters',
    usage('ingress', '10:02:00', 1),
    usage('ingress', '10:03:00', 20, '10:05:10'),
    usage('ingress', '10:07:00', 300, '10:09:00'),
    usage('sandbox_seconds', '10:01:00', 1, '10:02:30.499'),
    usage('sandbox_seconds', '10:02:00', 20, '10:02:30.500'),
    usage('sandbox_seconds', '10:03:00', 300, '10:05:00'),
    usage('sandbox_seconds', '10:04:00', 4000, '10:07:30.500'),
    usage('another', '10:04:00', 5),
  )
  const reader = createReader(database)
  const series = await readSeries(reader, 'acme', gridOf({ window: '5m' }, now))
  assert.deepEqual(
    [series.window, series.bucket, series.start, series.end],
    ['5m', '1m', at('10:02:30.500'), at('10:07:30.500')],
  )
  const runs = (total: number, ended: object = {}) => ({
    total,
    ok: 0,
    error: 0,
    cancelled: 0,
    interrupted: 0,
    ...ended,
  })
  assert.deepEqual(series.buckets[0], {
    start: at('10:02:00.000'),
    end: at('10:03:00.000'),
    runs: runs(2, { ok: 1, error: 1 }),
    inputTokens: 10,
    outputTokens: 5,
    cachedTokens: 2,
    toolCalls: 3,
    costCents: 1.5,
    unpricedRuns: 1,
    failedRuns: 1,
    sandboxSeconds: 20,
    ingressRequests: 0,
  })
  assert.deepEqual(
    series.buckets.map((b) => [b.start.slice(14, 16), b.runs.total, b.failedRuns, b.sandboxSeconds, b.ingressRequests]),
    [
      ['02', 2, 1, 20, 0],
      ['03', 1, 0, 0, 20],
      ['04', 0, 0, 0, 0],
      ['05', 0, 0, 300, 0],
      ['06', 0, 0, 0, 0],
      ['07', 1, 1, 0, 300],
    ],
  )
})

test('whatever was recorded, the buckets hold all of the window, each row in its place', async (t) => {
  const { database, meters } = await statsKernel(t)
  const reader = createReader(database)
  const row = fc.record({
    ago: fc.integer({ min: -60, max: 8 * 24 * 60 }).map((m) => m * 60_000),
    status: fc.constantFrom('ok', 'error', 'cancelled', 'interrupted'),
    microcents: fc.option(fc.integer({ min: 0, max: 10_000_000 })),
    tokens: fc.tuple(fc.nat(9), fc.nat(9), fc.nat(9)),
  })
  const windows = fc.constantFrom('5m', '1h', '6h', '24h', '7d')
  let tenant = 0
  await fc.assert(
    fc.asyncProperty(fc.array(row, { maxLength: 30 }), windows, fc.nat(86_400_000), async (rows, window, shift) => {
      const end = new Date(now.getTime() + shift)
      const tenantId = `tenant-${++tenant}`
      const stored: Meter[] = rows.map((r) => ({ ...r, tenant: tenantId, at: new Date(end.getTime() - r.ago) }))
      await meters(...stored)
      const grid = gridOf({ window }, end)
      const { buckets } = await readSeries(reader, tenantId, grid)
      for (const [i, bucket] of buckets.entries()) {
        const here = stored.filter(
          (m) => m.at >= grid.start && m.at < end && +m.at >= grid.starts[i]! && +m.at < grid.starts[i]! + grid.size,
        )
        const known = here.filter((m) => m.microcents !== null)
        assert.equal(bucket.runs.total, here.length)
        assert.equal(bucket.unpricedRuns, here.length - known.length)
        assert.equal(
          Math.round(bucket.costCents * 1e6),
          known.reduce((sum, m) => sum + m.microcents!, 0),
        )
        assert.equal(
          bucket.inputTokens,
          here.reduce((sum, m) => sum + m.tokens![0], 0),
        )
        assert.equal(bucket.failedRuns, here.filter((m) => m.status === 'error' || m.status === 'interrupted').length)
      }
    }),
    { numRuns: 40 },
  )
})
