import assert from 'node:assert/strict'
import { test } from 'node:test'
import { approvalProblems, type Decision, type Payment } from '../approvals.ts'
import { check } from '../checker.ts'
import type { Observation } from '../observed.ts'
import { judge } from '../report.ts'
import type { Stored, StoredEvent, StoredRun } from '../stored.ts'

const log: readonly StoredEvent[] = [
  { seq: 1, type: 'progress' },
  { seq: 2, type: 'assistant', text: 'one ' },
  { seq: 3, type: 'assistant', text: 'two' },
  { seq: 4, type: 'usage' },
  { seq: 5, type: 'result', text: 'one two' },
]
const deltas = [
  { seq: 2, type: 'delta', text: 'one ' },
  { seq: 3, type: 'delta', text: 'two' },
]
const done = { seq: 5, type: 'done', text: 'one two' }

/** A record that keeps every promise: one chat. */
const whole: Stored = {
  runs: [{ id: 'run_1', sessionId: 's', status: 'ok', owner: 'inst_1', finishedAt: 1, events: log }],
  publicRuns: [
    { id: 'prun_1', runId: 'run_1', conversationId: 'conv_1', status: 'ok', errorCode: undefined, finishedAt: 2 },
  ],
  messages: [
    { publicRunId: 'prun_1', role: 'user', content: 'Hi' },
    { publicRunId: 'prun_1', role: 'assistant', content: 'one two' },
  ],
  approvals: [],
  sessions: [{ id: 's', status: 'idle', run: undefined }],
}
const chat: Observation = { kind: 'chat', id: 'prun_1', readings: [[...deltas, done]], cancelled: false, ended: true }
const direct: Observation = { ...chat, kind: 'run', id: 'run_1', readings: [log] }

const withRun = (change: Partial<StoredRun>): Stored => ({ ...whole, runs: [{ ...whole.runs[0]!, ...change }] })
const without = (...seqs: number[]): StoredEvent[] => log.filter(({ seq }) => !seqs.includes(seq))

function catches(what: string, stored: Stored, observed: readonly Observation[], problem: RegExp): void {
  test(`the checker catches ${what}`, () => {
    const problems = check(stored, observed)
    assert.ok(
      problems.some((text) => problem.test(text)),
      problems.join('\n') || 'it found nothing',
    )
  })
}

test('the checker finds nothing where nothing is wrong', () => {
  assert.deepEqual(check(whole, [chat, direct]), [])
  const resumed = { ...chat, readings: [[deltas[0]!], [deltas[1]!, done]] }
  const reconstructed = { ...chat, readings: [[deltas[0]!], [done]] }
  const answered = { ...chat, readings: [], answer: 'one two' }
  assert.deepEqual(check(whole, [resumed, reconstructed, answered]), [])
})

test('what a killed process showed beyond its record is no broken promise, unless the run ended well', () => {
  const events: StoredEvent[] = [...log.slice(0, 2), { seq: 3, type: 'error' }]
  const lost = withRun({ status: 'interrupted', events })
  const failed = { ...lost, publicRuns: [{ ...whole.publicRuns[0]!, status: 'error', errorCode: 'interrupted' }] }
  const observation = { ...chat, readings: [[...deltas, { seq: 3, type: 'error' }]] }
  assert.deepEqual(check(failed, [observation]), [])
})

test('a chat that its gateway gave up need not show what its run still said', () => {
  const publicRuns = [{ ...whole.publicRuns[0]!, status: 'error', errorCode: 'unreachable' }]
  const messages = [whole.messages[0]!, { ...whole.messages[1]!, content: 'The agent cannot be reached.' }]
  const observation = { ...chat, readings: [[deltas[0]!, { seq: 0, type: 'error' }]] }
  assert.deepEqual(check({ ...whole, publicRuns, messages }, [observation]), [])
})

const renumbered = [...log.slice(0, 4), { seq: 6, type: 'result', text: 'one two' }]
catches(
  'an event that is on record twice',
  withRun({ events: [...log.slice(0, 2), ...log.slice(1)] }),
  [],
  /event 3 .* is numbered 2/,
)
catches('a gap in a log', withRun({ events: without(3) }), [], /event 3 .* is numbered 4/)
catches('a gap before the ending', withRun({ events: renumbered }), [], /event 5 .* is numbered 6/)
catches('a second terminal event', withRun({ events: [...log, { seq: 6, type: 'error' }] }), [], /2 terminal events/)
catches('a log without an ending', withRun({ events: log.slice(0, 4) }), [], /0 terminal events/)
catches(
  'an event behind the ending',
  withRun({ events: [...log, { seq: 6, type: 'usage' }] }),
  [],
  /its log ends with usage/,
)
catches('a run that never ended', withRun({ status: 'running', finishedAt: undefined }), [], /no terminal state/)
catches('an ending that contradicts the status', withRun({ status: 'interrupted' }), [], /terminal event is result/)
catches(
  'a session that is stuck',
  { ...whole, sessions: [{ id: 's', status: 'running', run: 'run_1' }] },
  [],
  /session s is running without a live run/,
)
catches(
  'a public run that is open',
  { ...whole, publicRuns: [{ ...whole.publicRuns[0]!, status: 'dispatching' }] },
  [],
  /prun_1 is still dispatching/,
)
catches(
  'a public run that is ok without its run',
  withRun({ status: 'error', events: [...log.slice(0, 4), { seq: 5, type: 'error' }] }),
  [],
  /prun_1 is ok, its run error/,
)
const [user, assistant] = whole.messages
catches('a second answer', { ...whole, messages: [user!, assistant!, assistant!] }, [], /2 answers/)
catches('a message that is missing', { ...whole, messages: [assistant!] }, [], /0 messages of its user/)
catches(
  'an answer that is not the result',
  { ...whole, messages: [user!, { ...assistant!, content: 'one' }] },
  [],
  /is not the result of its run/,
)
catches(
  'a message of nobody',
  { ...whole, messages: [...whole.messages, { ...user!, publicRunId: 'prun_2' }] },
  [],
  /prun_2, which is unknown/,
)
catches('an accepted chat that is unknown', whole, [{ ...chat, id: 'prun_9' }], /accepted and is unknown/)
catches('an accepted run that is unknown', whole, [{ ...direct, id: 'run_9' }], /accepted and has no run/)
catches('a client that never learnt the end', whole, [{ ...chat, ended: false }], /never learnt/)
catches(
  'an event shown twice',
  whole,
  [{ ...chat, readings: [[deltas[0]!], [...deltas, done]] }],
  /event 2 came after event 2/,
)
catches('an event that was not shown', whole, [{ ...chat, readings: [[deltas[1]!, done]] }], /1 events were not shown/)
catches(
  'an event lost between two connections',
  withRun({ events: [...log.slice(0, 3), { seq: 4, type: 'assistant', text: ' three' }, log[4]!] }),
  [{ ...chat, readings: [[deltas[0]!], [{ seq: 4, type: 'delta', text: ' three' }, done]] }],
  /1 events were not shown, the first is 3/,
)
catches(
  'an event lost before the ending of a run stream',
  whole,
  [{ ...direct, readings: [log.slice(0, 2), [log[4]!]] }],
  /2 events were not shown, the first is 3/,
)
catches(
  'another text than the one on record',
  whole,
  [{ ...chat, readings: [[{ ...deltas[0]!, text: 'two ' }, deltas[1]!, done]] }],
  /another text/,
)
catches(
  'an event that is in no log',
  whole,
  [{ ...chat, readings: [[...deltas, { seq: 9, type: 'delta', text: 'x' }]] }],
  /event 9 was shown and is not in the log/,
)
catches('two endings', whole, [{ ...chat, readings: [[...deltas, done], [done]] }], /told 2 endings/)
catches(
  'more after the ending',
  whole,
  [{ ...chat, readings: [[deltas[0]!, done, deltas[1]!]] }],
  /more after the ending/,
)
catches('the wrong ending', whole, [{ ...chat, readings: [[...deltas, { seq: 5, type: 'error' }]] }], /was told error/)
catches('a wrong answer', whole, [{ ...chat, readings: [], answer: 'two' }], /another answer/)

test('the verdict fails when too little succeeded, healing took too long, or orphans did', () => {
  const findings = {
    options: { minutes: 1, seed: 1, json: false, rate: 1 },
    stored: whole,
    observed: [chat],
    problems: [],
    orphans: [{ id: 'run_1', ms: 5_000 }],
    healMs: 1_000,
    faults: [],
    begun: 1,
    refused: 0,
    workflows: { figures: {}, problems: [] },
  }
  assert.equal(judge(findings).passed, true)
  assert.equal(judge({ ...findings, healMs: 15_001 }).passed, false)
  assert.equal(judge({ ...findings, healMs: undefined }).passed, false)
  assert.equal(judge({ ...findings, orphans: [{ id: 'run_1', ms: 15_001 }] }).passed, false)
  assert.equal(judge({ ...findings, problems: ['something'] }).passed, false)
  assert.equal(judge({ ...findings, workflows: { figures: {}, problems: ['something'] } }).passed, false)
  const failed = { ...whole, publicRuns: [{ ...whole.publicRuns[0]!, status: 'error', errorCode: 'unreachable' }] }
  assert.equal(judge({ ...findings, stored: failed }).passed, false)
  const cancelled = {
    ...whole,
    publicRuns: [...whole.publicRuns, { ...failed.publicRuns[0]!, errorCode: 'cancelled' }],
  }
  assert.equal(judge({ ...findings, stored: cancelled }).passed, true)
})

test('the checker of approvals finds nothing where nothing is wrong, and each promise that is broken', () => {
  const asked = (status: string): Stored => ({ ...whole, approvals: [{ id: 'appr_1', runId: 'run_1', status }] })
  const payment: Payment = { runId: 'run_1', idempotencyKey: 'run_1:c1' }
  const told = (approved: boolean): Decision => ({ id: 'appr_1', approved })
  assert.deepEqual(approvalProblems(asked('approved'), [payment], [told(true)]), [])
  assert.deepEqual(approvalProblems(asked('rejected'), [], [told(false)]), [])
  const parked = withRun({ status: 'running', owner: 'parked', finishedAt: undefined })
  for (const [stored, payments, decisions, problem] of [
    [asked('waiting'), [], [], /waits still/],
    [asked('approved'), [payment, payment], [], /made 2 times/],
    [asked('rejected'), [payment], [], /its call was made/],
    [asked('approved'), [], [], /never made/],
    [parked, [], [], /parked still/],
    [whole, [payment], [], /without an approval/],
    [asked('approved'), [payment], [told(true), told(true)], /decided 2 times/],
    [asked('approved'), [payment], [told(false)], /told otherwise/],
  ] as const)
    assert.match(approvalProblems(stored, payments, decisions).join(), problem)
})
