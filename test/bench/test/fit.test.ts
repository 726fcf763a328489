import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createRandom } from '../../chaos/random.ts'
import { fit, judge, type Point } from '../soak/fit.ts'

/** Half an hour, read every 15 seconds. */
const series = (value: (minutes: number, n: number) => number, count = 120): Point[] =>
  Array.from({ length: count }, (_, n) => ({ minutes: n / 4, value: value(n / 4, n) }))

/** Noise that is the same in every run, evenly spread between -width and width. */
function noise(width: number, seed = 7): () => number {
  const random = createRandom(seed)
  return () => random.between(-width, width)
}

test('the line through points that lie on one is that line, without error', () => {
  const line = fit(series((minutes) => 100 + 3 * minutes))
  assert.ok(Math.abs(line.slope - 3) < 1e-9)
  assert.ok(line.error < 1e-9)
})

test('the error of a slope is the textbook’s', () => {
  // x 0..4, y 1 2 2 4 5: slope 1, rest (0.2, 0.2, -0.8, 0.2, 0.2) squared 0.8, over 3 and over Sxx 10.
  const points = [1, 2, 2, 4, 5].map((value, minutes) => ({ minutes, value }))
  const { slope, error } = fit(points)
  assert.ok(Math.abs(slope - 1) < 1e-9)
  assert.ok(Math.abs(error - Math.sqrt(0.8 / 3 / 10)) < 1e-9)
})

test('a flat series is steady, and so is one that falls', () => {
  assert.equal(
    judge(
      series(() => 80),
      2,
    ).finding,
    'steady',
  )
  assert.equal(
    judge(
      series((minutes) => 300 - 5 * minutes),
      2,
    ).finding,
    'steady',
  )
})

test('a series that grows faster than the limit grows, one that grows slower is steady', () => {
  assert.equal(
    judge(
      series((minutes) => 80 + 2.2 * minutes),
      2,
    ).finding,
    'grows',
  )
  assert.equal(
    judge(
      series((minutes) => 80 + 1.8 * minutes),
      2,
    ).finding,
    'steady',
  )
})

test('noise does not hide growth, and is none', () => {
  const up = noise(15)
  assert.equal(
    judge(
      series((minutes) => 80 + 4 * minutes + up()),
      2,
    ).finding,
    'grows',
  )
  const level = noise(15)
  assert.equal(
    judge(
      series(() => 80 + level()),
      2,
    ).finding,
    'steady',
  )
})

test('a series so noisy that growth would not be seen is unclear, whichever way it happens to lean', () => {
  const findings = Array.from({ length: 20 }, (_, seed) => {
    const wild = noise(200, seed)
    return judge(
      series(() => 80 + wild(), 20),
      2,
    ).finding
  })
  assert.ok(
    !findings.includes('steady') || findings.filter((finding) => finding === 'steady').length <= 4,
    findings.join(),
  )
  assert.ok(findings.filter((finding) => finding === 'grows').length <= 2, findings.join())
})

test('what grows only while a process warms up is steady, what begins to grow after that is not', () => {
  assert.equal(
    judge(
      series((minutes) => Math.min(80, minutes * 10)),
      2,
    ).finding,
    'steady',
  )
  assert.equal(
    judge(
      series((minutes) => 80 + Math.max(0, minutes - 15) * 4),
      2,
    ).finding,
    'grows',
  )
})

test('a sawtooth, as caches draw it, is steady', () => {
  assert.equal(
    judge(
      series((_, n) => 80 + (n % 8) * 2),
      2,
    ).finding,
    'steady',
  )
})

test('too few readings to draw a line are no proof of anything', () => {
  assert.equal(judge([], 2).finding, 'unclear')
  assert.equal(
    judge(
      series(() => 80, 3),
      2,
    ).finding,
    'unclear',
  )
})
