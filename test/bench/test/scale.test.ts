import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readOptions } from '../scale/options.ts'
import { report } from '../scale/report.ts'

const figures = (count: number, page: number, sweep: number) => ({
  count,
  prepared: { seeded: 0, rolled: 0 },
  ms: { page, sweep },
})

test('what takes more than three times as long as at the first size is named', () => {
  const bad = report([figures(10_000, 2, 5), figures(1_000_000, 5.9, 5), figures(10_000_000, 6.1, 4)])
  assert.equal(bad.met, false)
  assert.match(bad.text, /page +\| 2\.0 +\| 5\.9 +\| 3\.0 +\| 6\.1 +\| 3\.1 !/)
  assert.match(bad.text, /NOT MET.*: page$/m)
  assert.equal(report([figures(10_000, 2, 5), figures(1_000_000, 6, 14)]).met, true)
})

test('sizes are whole numbers, ten thousand at least', () => {
  assert.deepEqual(readOptions(['--runs', '10000,20000']), { runs: [10_000, 20_000], samples: 15 })
  for (const runs of ['9999', 'many', '10000,']) assert.throws(() => readOptions(['--runs', runs]), /whole numbers/)
  assert.throws(() => readOptions(['--samples', '0']), /whole number/)
})
