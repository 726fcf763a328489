import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as turn } from 'node:timers/promises'
import fc from 'fast-check'
import { linesOf } from '#kernel'
import { type ExecuteRun, leaving } from '#contracts/runner'
import { collect, type Line, paced, run } from './fixtures.ts'

const never = new AbortController().signal
const kept = (over: Partial<ExecuteRun>) => run({ keepMs: 30_000, ...over })

/** What can happen to a run at any moment. */
const happenings = ['say', 'end', 'read', 'leave', 'attach', 'cancel', 'supersede', 'stale', 'turn'] as const

test('however its events race, a run has one end, every reader sees a part of one log, and its session is free', async (t) => {
  const { f, say } = await paced(t)
  let n = 0
  await fc.assert(
    fc.asyncProperty(fc.array(fc.constantFrom(...happenings), { minLength: 4, maxLength: 30 }), async (schedule) => {
      const [id, runId] = [`s${++n}`, `r${n}`]
      let epoch = 1
      const log = new Map<number, string>()
      const terminals = new Set<string>()
      const failures: unknown[] = []
      const readers: { over: Promise<void>; gone: AbortController }[] = []
      const read = (chunks: AsyncIterable<Buffer>, gone: AbortController): void => {
        let due: number | undefined
        const over = (async () => {
          for await (const chunk of chunks) {
            for (const line of linesOf(chunk)) {
              const event = JSON.parse(line.toString()) as { seq: number; type: string; runId: string }
              assert.equal(event.runId, runId)
              assert.equal(event.seq, due ?? event.seq)
              due = event.seq + 1
              // Every reader gets the same line.
              assert.equal(log.get(event.seq) ?? String(line), String(line))
              log.set(event.seq, String(line))
              if (event.type === 'result' || event.type === 'error') terminals.add(String(line))
            }
          }
        })().catch((error: unknown) => void failures.push(error))
        readers.push({ over, gone })
      }
      const begin = new AbortController()
      read(f.runner.execute('acme', kept({ runId, sessionId: id, epoch }), begin.signal), begin)
      let superseded: Promise<Line[]> | undefined
      const attachNow = (at: number): void => {
        const gone = new AbortController()
        const after = log.size
        read(f.runner.attach('acme', { sessionId: id, runId, afterSeq: after, epoch: at }, gone.signal), gone)
      }
      const happen: Record<(typeof happenings)[number], () => unknown> = {
        say: () => say('x'),
        end: () => say('end'),
        read: () => turn(),
        leave: () => readers.at(-1)!.gone.abort(leaving),
        attach: () => attachNow(++epoch),
        stale: () => attachNow(0),
        cancel: () => f.runner.runs.cancel('acme', runId),
        supersede() {
          superseded ??= collect(
            f.runner.execute('acme', run({ runId: `${runId}b`, sessionId: id, epoch: 1_000 }), never),
          )
          say('end')
        },
        turn: () => turn(),
      }
      for (const one of schedule) await happen[one]()
      say('end')
      attachNow(++epoch)
      f.runner.runs.cancel('acme', runId)
      await Promise.all(readers.map(({ over }) => over))
      for (const failure of failures) {
        const { code } = failure as { code?: string }
        assert.ok(['attempt_superseded', 'unknown_run'].includes(code!), String(failure))
      }
      assert.ok(terminals.size <= 1)
      // No reader has to have seen the end of a run that was superseded.
      if (!superseded) assert.equal(terminals.size, 1)
      assert.deepEqual(
        [...log.keys()].toSorted((a, b) => a - b),
        Array.from(log.keys(), (_, i) => i + 1),
      )
      if (superseded) {
        f.runner.runs.cancel('acme', `${runId}b`)
        await superseded
      }
      assert.equal((await f.runner.getSession('acme', id))!.status, 'idle')
    }),
    { numRuns: 300 },
  )
})
