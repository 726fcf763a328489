import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Observation, Seen } from '../observed.ts'
import type { Told } from '../rolling/chats.ts'
import { judge, type Verdict } from '../rolling/verdict.ts'
import type { Stored, StoredEvent } from '../stored.ts'

const answer = 'ab-0 ab-1 turn2'
const log: readonly StoredEvent[] = [
  { seq: 1, type: 'progress' },
  { seq: 2, type: 'assistant', text: 'ab-0 ' },
  { seq: 3, type: 'assistant', text: 'ab-1 ' },
  { seq: 4, type: 'assistant', text: 'turn2' },
  { seq: 5, type: 'result', text: answer },
]
const [first, second, third]: readonly [Seen, Seen, Seen] = [
  { seq: 2, type: 'delta', text: 'ab-0 ' },
  { seq: 3, type: 'delta', text: 'ab-1 ' },
  { seq: 4, type: 'delta', text: 'turn2' },
]
const done: Seen = { seq: 5, type: 'done', text: answer }

const stored: Stored = {
  runs: [{ id: 'run_1', sessionId: 's', status: 'ok', owner: 'inst_1', finishedAt: 1, events: log }],
  publicRuns: [
    { id: 'prun_1', runId: 'run_1', conversationId: 'conv_1', status: 'ok', errorCode: undefined, finishedAt: 2 },
  ],
  messages: [
    { publicRunId: 'prun_1', role: 'user', content: 'Hi' },
    { publicRunId: 'prun_1', role: 'assistant', content: answer },
  ],
  approvals: [],
  sessions: [{ id: 's', status: 'idle', run: undefined }],
}
const observation = (...readings: readonly (readonly Seen[])[]): Observation => ({
  kind: 'chat',
  id: 'prun_1',
  readings,
  cancelled: false,
  ended: true,
})
const whole: Told = {
  question: { words: 2, tag: 'ab', streamed: true, conversation: 'conv_1' },
  turnsBefore: 1,
  conversationId: 'conv_1',
  observation: observation([first, second], [third, done]),
  answer,
  closed: 1,
  broken: 0,
  repeated: 0,
  waitedMs: 20,
  longestGapMs: 300,
}
const judged = (change: Partial<Told>, record: Stored = stored, begun = 1): Verdict =>
  judge({ told: [{ ...whole, ...change }], begun, stored: record, restarts: [], problems: [] })

test('a chat that was resumed and is whole passes', () => {
  const verdict = judged({})
  assert.deepEqual([verdict.problems, verdict.passed, verdict.closed, verdict.gapWorstMs], [[], true, 1, 300])
})

test('a chat that is told its whole answer when it comes back passes', () => {
  assert.equal(judged({ observation: observation([first], [done]) }).passed, true)
})

test('a synchronous chat passes by its answer', () => {
  const question = { ...whole.question, streamed: false }
  assert.equal(judged({ question, observation: { ...observation(), answer } }).passed, true)
})

test('a delta that comes twice is counted', () => {
  const { doubled, passed } = judged({ observation: observation([first, second], [second, third, done]) })
  assert.deepEqual([doubled, passed], [1, false])
})

test('a delta that is on record and was not shown is counted', () => {
  const { missing, passed } = judged({ observation: observation([first], [third, done]) })
  assert.deepEqual([missing, passed], [1, false])
})

test('each way to fail is one failed chat', () => {
  const { answer: _, ...unanswered } = whole
  const failed = [
    judged({ gaveUp: 'refused: 502' }),
    judged({ answer: 'ab-0 turn2' }),
    judge({ told: [unanswered], begun: 1, stored, restarts: [], problems: [] }),
    judged({}, stored, 2),
  ]
  assert.deepEqual(
    failed.map((one) => [one.failed, one.passed]),
    failed.map(() => [1, false]),
  )
})

test('an answer without the turns before it fails although it is right', () => {
  const { forgotten, failed, passed } = judged({ turnsBefore: 2 })
  assert.deepEqual([forgotten, failed, passed], [1, 0, false])
})

test('a process that would not stop, and a run without anything, fail', () => {
  const nothing = judge({ told: [], begun: 0, stored, restarts: [], problems: [] })
  const stuck = judge({ told: [whole], begun: 1, stored, restarts: [], problems: ['runner-1 was still there'] })
  assert.deepEqual([nothing.passed, stuck.passed], [false, false])
})
