import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Replay } from '#contracts/replay'
import { createEventEncoder, logDeletedStage, type RuntimeEvent } from '#contracts/run-event'
import type { Claim, PastRun, RunStore } from '#contracts/run-store'
import type { RunLinks } from '../links.ts'
import { readTurns } from '../replay.ts'

const claim = { tenantId: 'acme', runId: 'run_now', sessionId: 'sess' } as unknown as Claim
const links = { whole: async (_claim: Claim, replay: Replay) => replay } as unknown as RunLinks

/** What a conversation is given of a run whose log begins with this number. */
async function replayOf(firstSeq: number, events: readonly RuntimeEvent[]): Promise<unknown> {
  const encoder = createEventEncoder('run_1', 'sess', firstSeq)
  const lines = Buffer.from(events.map((event) => encoder.line(event)).join(''))
  const log = [{ firstSeq, count: events.length, lines }]
  const run = { runId: 'run_1', status: 'ok', prompt: 'x', log } as unknown as PastRun
  const store = {
    async *pastRuns() {
      yield [run]
    },
  } as unknown as RunStore
  const bundle = await readTurns({ store, links }, claim, undefined)
  return JSON.parse(Buffer.from(bundle!.bytes).toString()).turns[0].replay
}

const end: RuntimeEvent = { type: 'result', text: 'All of the answer.', finishReason: 'stop' }
const answer = [{ type: 'assistant', text: 'All of the answer.', delta: true }]

test('of a run whose log is deleted in part the answer is restored, not what is left of its text and its calls', async () => {
  const left: RuntimeEvent[] = [
    { type: 'tool_result', id: 'c1', name: 'look', ok: true, content: 'of a call that is gone' },
    { type: 'assistant', text: ' the answer.', delta: true },
    end,
  ]
  assert.deepEqual(await replayOf(40, left), answer)
  const marked: RuntimeEvent[] = [{ type: 'progress', stage: logDeletedStage, message: 'gone' }, end]
  assert.deepEqual(await replayOf(121, marked), answer)
  // A log that is whole is restored as it was streamed.
  const whole = await replayOf(1, [{ type: 'assistant', text: 'As it was streamed.', delta: true }, end])
  assert.deepEqual(whole, [{ type: 'assistant', text: 'As it was streamed.', delta: true }])
})
