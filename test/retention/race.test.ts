import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { openStores } from '../../plugins/runs/test/postgres/stores.ts'
import { Batches } from '../../plugins/retention/batches.ts'
import { blocksAnother } from '#testing'
import { closeIdle } from '../../plugins/retention/conversations.ts'
import { dropLogs } from '../../plugins/retention/logs.ts'
import { chat, run, stage } from './stage.ts'

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
    // The close holds its locks for some turns, at another moment of the start each time; now and then the start comes when it has them already.
    const { promise: locked, resolve: hasLocked } = Promise.withResolvers<void>()
    const close = db.as('reads').tenant('acme', async (tx) => {
      const closed = await closeIdle(tx, [`conv_${i}`])
      hasLocked()
      for (let turn = 0; turn < i % 4; turn++) await nextTurn()
      return closed
    })
    for (let turn = 0; turn < i % 5; turn++) await nextTurn()
    if (i % 10 === 9) await locked
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

test('while the logs of an erased person are deleted, the sessions of their runs are free', async (t) => {
  const { database, sql, call, count } = await stage(t)
  await sql(
    'acme',
    ...chat('acme', 'a', 0, 'conv_a', 'ann'),
    ...run('acme', 'run_own', 0, 'sess-own', { endUser: 'ann' }),
    ...run('acme', 'run_child', 0, 'sess-child', { parent: 'run_own' }),
    ...['run_a', 'run_own', 'run_child'].map(
      (id) => `INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
               SELECT 'acme', '${id}', n, 1, 'x' FROM generate_series(2, 70) n`,
    ),
  )
  let erased: ReturnType<typeof call> | undefined
  for (const [id, session] of [
    ['run_a', 'sess-conv_a'],
    ['run_child', 'sess-own'],
  ]) {
    await database.as('claims').tenant('acme', async (tx) => {
      await tx.query({ text: 'SELECT 1 FROM run_events WHERE run_id = $1 FOR UPDATE', values: [id] })
      erased ??= call('DELETE', '/api/end-users/ann', 'acme')
      await blocksAnother(tx)
      await tx.query({ text: 'SELECT 1 FROM sessions WHERE id = $1 FOR UPDATE NOWAIT', values: [session] })
    })
  }
  const { runs, pending } = (await erased!).json<{ runs: number; pending: number }>()
  assert.deepEqual([runs, pending], [3, 0])
  assert.deepEqual([await count('acme', 'run_events'), await count('acme', 'runs')], [0, 0])
})

test('logs stay under a legal hold that is set after their runs were found, and those of runs under way and of what they delegated', async (t) => {
  const { database, sql, count } = await stage(t)
  await sql(
    'acme',
    ...run('acme', 'run_over', 0),
    ...run('acme', 'run_live', 0),
    ...run('acme', 'run_child', 0, 'sess-child', { parent: 'run_live' }),
    `UPDATE runs SET status = 'running', finished_at = NULL WHERE id = 'run_live'`,
  )
  const batches = new Batches(database, 0)
  const drop = (hold: boolean) =>
    dropLogs(
      batches,
      'acme',
      async (tx) => {
        await tx.query({ text: `UPDATE tenants SET legal_hold = $1 WHERE id = 'acme'`, values: [hold] })
        return ['run_live', 'run_over']
      },
      new AbortController().signal,
    )
  await assert.rejects(drop(true), { code: 'legal_hold' })
  assert.equal(await count('acme', 'run_events'), 3)
  await sql('acme', `UPDATE tenants SET legal_hold = false WHERE id = 'acme'`)
  await drop(false)
  assert.equal(await count('acme', `run_events WHERE run_id IN ('run_live', 'run_child')`), 2)
  assert.equal(await count('acme', 'run_events'), 2)
})
