import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Measured } from '../inspector.ts'
import { judgeAll } from '../soak/report.ts'
import { judgeProcess, type Seen } from '../soak/verdict.ts'

const mib = 1024 ** 2
const at = (heap: number, external = 10, resources: Record<string, number> = { Timeout: 12 }): Measured => ({
  rss: 200 * mib,
  heapUsed: heap * mib,
  external: external * mib,
  resources,
})

const seen = (reading: (minutes: number) => Measured, more: Partial<Seen> = {}): Seen => ({
  name: 'gateway',
  before: at(40),
  samples: Array.from({ length: 40 }, (_, n) => ({ minutes: n / 4, ...reading(n / 4) })),
  after: at(42),
  warnings: [],
  ...more,
})

const problems = (one: Seen): string => judgeProcess(one).problems.join('\n')

test('a process that holds what it held is without problems', () => {
  assert.equal(problems(seen(() => at(60))), '')
})

test('a heap that grows, buffers outside it that grow, and handles that grow are each told', () => {
  assert.match(problems(seen((minutes) => at(60 + 3 * minutes))), /^gateway: the heap grows by 3.00 MiB a minute$/)
  assert.match(problems(seen((minutes) => at(60, 10 + 5 * minutes))), /^gateway: memory outside the heap grows by 5.00/)
  const more = seen((minutes) => at(60, 10, { Timeout: 12, TCPSocketWrap: Math.round(20 + 6 * minutes) }))
  assert.match(problems(more), /^gateway: the number of handles, timers and requests grows by (5.9|6.0)/)
})

test('what is left behind at rest is told by kind, what pools keep open is not', () => {
  const left = seen(() => at(60), { after: at(42, 10, { Timeout: 12, TCPSocketWrap: 90 }) })
  assert.match(problems(left), /^gateway: at rest 90 more than before: 90 TCPSocketWrap$/)
  assert.equal(problems(seen(() => at(60), { after: at(42, 10, { Timeout: 12, TCPSocketWrap: 20 }) })), '')
})

test('a warning of listeners that pile up is a problem, other warnings are not', () => {
  const warnings = ['ExperimentalWarning: x', 'MaxListenersExceededWarning: 11 close listeners added to [Socket]']
  assert.equal(problems(seen(() => at(60), { warnings })), `gateway: ${warnings[1]}`)
})

test('readings too noisy to judge are a problem: a soak that cannot see a leak must not say that there is none', () => {
  assert.match(problems(seen((minutes) => at(minutes % 0.5 === 0 ? 60 : 400))), /too noisy/)
})

test('failed stories and whatever is not at rest fail a soak in which nothing grows', () => {
  const counted = { minutes: 10, rate: 8, seed: 1, stories: 100, requests: 200, webhooks: 3 }
  const judged = (messages: Record<string, number>, notAtRest: string[]): readonly string[] =>
    judgeAll({ ...counted, errors: 0, messages }, [seen(() => at(60))], notAtRest).problems
  assert.deepEqual(judged({}, []), [])
  assert.deepEqual(judged({ 'POST /api/runs: 500': 2 }, []), ['2 times: POST /api/runs: 500'])
  assert.deepEqual(judged({}, ['gateway: chat_gateway_watcher_active is 1 at rest']).length, 1)
})
