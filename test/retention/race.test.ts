import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { openStores } from '../../plugins/runs/test/postgres/stores.ts'
import { closeIdle } from '../../plugins/retention/conversations.ts'
import { chat } from './stage.ts'

test('a chat that goes on while its conversation is closed either keeps it or is told that it is gone', async (t) => {
  const { db, open } = await openStores(t)
  const store = await open()
  const goOn = (i: number) =>
    store.start({
      tenantId: 'acme',
      runId: `run_more_${i}`,
      sessionId: `sess-conv_${i}`,
      task: {
        profile: 'p',
        prompt: 'more',
        chat: { publicRunId: `prun_more_${i}`, conversationId: `conv_${i}`, publishedId: 'pub', continued: true },
      },
    })
  const ends = new Set<string>()
  for (let i = 0; i < 40; i++) {
    await db.batch(
      'acme',
      chat('acme', `c${i}`, 10, `conv_${i}`).map((text) => ({ text })),
    )
    // The close holds its locks for some turns, at another moment of the start each time.
    const close = db.as('reads').tenant('acme', async (tx) => {
      const closed = await closeIdle(tx, [`conv_${i}`])
      for (let turn = 0; turn < i % 4; turn++) await nextTurn()
      return closed
    })
    for (let turn = 0; turn < i % 5; turn++) await nextTurn()
    const [closed, started] = await Promise.all([close, goOn(i)])
    const [rows] = await db.batch<[{ said: number; there: boolean }[]]>('acme', [
      {
        text: `SELECT (SELECT count(*)::int FROM messages WHERE tenant_id = 'acme' AND public_run_id = $1) AS said,
                 EXISTS (SELECT FROM conversations WHERE tenant_id = 'acme' AND id = $2) AS there`,
        values: [`prun_more_${i}`, `conv_${i}`],
      },
    ])
    const kept = closed.length === 0
    assert.deepEqual(rows[0], kept ? { said: 1, there: true } : { said: 0, there: false }, `${i}: ${started.kind}`)
    assert.equal(started.kind === 'started', kept, started.kind)
    ends.add(started.kind)
  }
  assert.ok(ends.has('no_conversation'), [...ends].join())
})
