import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Plan, thinness } from './attack.ts'

const limits = { readsPerMinute: 60, writesPerMinute: 60, chatsPerMinute: 0 } as Plan
const ok = (attack: Parameters<typeof thinness>[0], answers: Record<string, number>): boolean =>
  thinness(attack, { answers, seconds: 10, limits }).verdict.ok

test('an attack is thin when most of its requests missed what they were to hurt', () => {
  assert.equal(ok({}, { '200': 1, '429': 9 }), true)
  assert.equal(ok({}, { '200': 4, '404': 6 }), false)
  assert.equal(ok({ meant: /^401$/ }, { '401': 6, '200': 4 }), true)
  assert.equal(ok({}, {}), false)
})

test('one that is at its limits is thin when little of what they allow was done', () => {
  // Two a second are allowed: ten in ten seconds are half of them.
  assert.equal(ok({ atLimits: true }, { '200': 6, '201': 4, '429': 990 }), true)
  assert.equal(ok({ atLimits: true }, { '200': 9, '429': 990 }), false)
})
