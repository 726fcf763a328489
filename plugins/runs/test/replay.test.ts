import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { LogChunk } from '#contracts/run-event'
import type { Claim, PastRun, RunStore } from '#contracts/run-store'
import type { RunLinks } from '../links.ts'
import { readTurns } from '../replay.ts'

/** What is restored of the answer of a run whose log begins with this event. */
async function answerOf(firstSeq: number): Promise<unknown> {
  const lines = [
    { type: 'assistant', text: 'the end of it', delta: true },
    { type: 'result', text: 'All of it, and the end of it' },
  ].map((event, i) => `${JSON.stringify({ ...event, seq: firstSeq + i })}\n`)
  const log: LogChunk[] = [{ firstSeq, count: 2, lines: Buffer.from(lines.join('')) }]
  const run = { runId: 'run_1', status: 'ok', prompt: 'Hi', log } as unknown as PastRun
  async function* pastRuns(): AsyncGenerator<readonly PastRun[]> {
    yield [run]
  }
  const links = { whole: async (_key: unknown, replay: unknown) => replay } as unknown as RunLinks
  const store = { pastRuns } as unknown as RunStore
  const bundle = await readTurns({ store, links }, { tenantId: 'acme' } as Claim, undefined)
  return (JSON.parse(bundle!.bytes.toString()) as { turns: { replay: unknown }[] }).turns[0]!.replay
}

test('the answer of a log whose beginning was deleted is the whole one of its end, not what is left of its text', async () => {
  assert.deepEqual(await answerOf(7), [{ type: 'assistant', text: 'All of it, and the end of it', delta: true }])
  assert.deepEqual(await answerOf(1), [{ type: 'assistant', text: 'the end of it', delta: true }])
})
