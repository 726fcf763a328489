import assert from 'node:assert/strict'
import { test } from 'node:test'
import { newId } from '#contracts/ids'
import type { Wake } from '#contracts/jobs'
import { Schedules, type SchedulesDeps } from '../schedules.ts'
import { dueIn, jitterOf, lastTimesOf, missedOf, timesOf } from '../times.ts'
import { type Body, type Stage, stage } from './stage.ts'

test('schedules fire once a time on any number of conductors, and follow their policies', async (t) => {
  const s = await stage(t)
  const other = await stage(t, s)
  const { body: quick } = await s.call('POST', '/api/workflows/definitions', {
    name: 'quick',
    nodes: [{ id: 'a', type: 'condition', if: true }],
  })
  const { body: slow } = await s.call('POST', '/api/workflows/definitions', {
    name: 'slow',
    nodes: [{ id: 'a', type: 'wait', signal: 'end' }],
  })
  const create = async (body: object): Promise<string> => {
    const made = await s.call('POST', '/api/workflows/schedules', { cron: '0 0 1 1 *', ...body })
    assert.equal(made.status, 201, JSON.stringify(made.body))
    return made.body.id
  }
  /**
   * Moves the next time of a schedule into the past and wakes both conductors for it. The schedule then has this minute and `minutes` before it as
   * times, and none that could come during the test.
   */
  const due = async (id: string, minutes: number): Promise<void> => {
    const last = Math.floor(Date.now() / 60_000)
    const times = Array.from({ length: minutes + 1 }, (_, n) => (last - n) % 60)
    await s.database.tenant('default', (tx) =>
      tx.query({
        text: `UPDATE workflow_schedules SET next_at = $3,
                 document = jsonb_set(document::jsonb, '{cron}', to_jsonb($4::text))::text WHERE tenant_id = $1 AND id = $2`,
        values: ['default', id, new Date((last - minutes) * 60_000), `${times.join()} * * * *`],
      }),
    )
    await Promise.all([s.wake(id), other.wake(id), s.wake(id), other.wake(id)])
  }
  /** The same for a schedule that fires every minute, three weeks in the past. */
  const weeksAgo = async (id: string): Promise<void> => {
    await s.database.tenant('default', (tx) =>
      tx.query({
        text: `UPDATE workflow_schedules SET next_at = date_trunc('minute', now()) - interval '21 days',
                 document = jsonb_set(document::jsonb, '{cron}', '"* * * * *"')::text WHERE tenant_id = $1 AND id = $2`,
        values: ['default', id],
      }),
    )
    await Promise.all([s.wake(id), other.wake(id)])
  }
  const history = async (id: string): Promise<Body[]> =>
    (await s.call('GET', `/api/workflows/schedules/${id}/history`)).body
  const until = async (id: string, holds: (rows: Body[]) => boolean): Promise<Body[]> => {
    for (;;) {
      const rows = await history(id)
      if (holds(rows)) return rows
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
  }
  const outcomes = (rows: Body[]): string[] => rows.map(({ outcome }) => outcome)

  await t.test('one firing for a time, however many are woken', async () => {
    const id = await create({ workflowDefinitionId: quick.id })
    await due(id, 0)
    const rows = await until(id, (all) => all.length > 0)
    assert.deepEqual(outcomes(rows), ['started'])
    assert.equal((await s.rests(rows[0].runId)).scheduleId, id)
  })
  await t.test('missed times: none, one, all', async () => {
    for (const [catchUp, started] of [
      ['none', 1],
      ['one', 2],
      ['all', 4],
    ] as const) {
      const id = await create({ workflowDefinitionId: quick.id, catchUp, overlap: 'allow' })
      await due(id, 0)
      await s.database.tenant('default', (tx) =>
        tx.query({
          text: `DELETE FROM workflow_firings WHERE tenant_id = $1 AND schedule_id = $2`,
          values: ['default', id],
        }),
      )
      await due(id, 3)
      const rows = await until(id, (all) => all.length >= 4)
      assert.ok(
        outcomes(rows).filter((one) => one === 'started').length >= started - 1,
        `${catchUp}: ${outcomes(rows).join()}`,
      )
      assert.ok(
        outcomes(rows).filter((one) => one === 'started').length <= started,
        `${catchUp}: ${outcomes(rows).join()}`,
      )
    }
  })
  await t.test('after a stop of weeks one is one, and the history has the last thousand', async () => {
    const id = await create({ workflowDefinitionId: quick.id, catchUp: 'one', overlap: 'allow' })
    await weeksAgo(id)
    await until(id, (all) => all.length > 0)
    const counted = await s.database.tenant('default', (tx) =>
      tx.query<{ outcome: string; count: number }>({
        text: `SELECT outcome, count(*)::int AS count FROM workflow_firings WHERE tenant_id = $1 AND schedule_id = $2 GROUP BY 1`,
        values: ['default', id],
      }),
    )
    const { started = 0, missed = 0 } = Object.fromEntries(counted.map(({ outcome, count }) => [outcome, count]))
    // This minute is started, and possibly the last missed one.
    assert.ok(started === 1 || started === 2, JSON.stringify(counted))
    assert.equal(started + missed, 1_000)
    // Under a legal hold nothing goes for it.
    const held = (hold: boolean) =>
      s.database.systemBatch([{ text: 'UPDATE tenants SET legal_hold = $1 WHERE id = $2', values: [hold, 'default'] }])
    const kept = async (): Promise<number> => {
      assert.equal((await s.call('POST', `/api/workflows/schedules/${id}/run`)).status, 202)
      const count = 'SELECT count(*)::int AS n FROM workflow_firings WHERE tenant_id = $1 AND schedule_id = $2'
      const rows = s.database.tenant('default', (tx) =>
        tx.query<{ n: number }>({ text: count, values: ['default', id] }),
      )
      return (await rows)[0]!.n
    }
    await held(true)
    assert.equal(await kept(), 1_001)
    await held(false)
    assert.equal(await kept(), 1_000)
  })
  await t.test('overlap: skip, queue, allow', async () => {
    for (const [overlap, outcome] of [
      ['skip', 'skipped'],
      ['queue', 'queued'],
      ['allow', 'started'],
    ] as const) {
      const id = await create({ workflowDefinitionId: slow.id, overlap })
      const { body: first } = await s.call('POST', `/api/workflows/schedules/${id}/run`)
      await due(id, 0)
      const rows = await until(id, (all) => all.length > 1)
      assert.deepEqual(outcomes(rows).toSorted(), [outcome, 'started'].toSorted())
      await s.call('POST', `/api/workflows/runs/${first.id}/signals/end`)
      if (overlap === 'queue') await until(id, (all) => outcomes(all).every((one) => one === 'started'))
    }
  })
  await t.test('times that are made up for at once meet the overlap that they make themselves', async () => {
    for (const [overlap, expected] of [
      ['skip', ['skipped', 'skipped', 'skipped', 'started']],
      ['queue', ['queued', 'skipped', 'skipped', 'started']],
    ] as const) {
      const id = await create({ workflowDefinitionId: slow.id, catchUp: 'all', overlap })
      await due(id, 3)
      const rows = await until(id, (all) => all.length >= 4)
      assert.deepEqual(outcomes(rows).toSorted(), expected)
      assert.equal(rows.at(-1).outcome, 'started', 'the first of them')
    }
  })
  await t.test(
    'what waits for its turn when its schedule is paused, or its target is deleted, does not start',
    async () => {
      const id = await create({ workflowDefinitionId: slow.id, overlap: 'queue' })
      const { body: first } = await s.call('POST', `/api/workflows/schedules/${id}/run`)
      await due(id, 0)
      await until(id, (all) => outcomes(all).includes('queued'))
      await s.call('POST', `/api/workflows/schedules/${id}/pause`)
      assert.deepEqual(outcomes(await history(id)).toSorted(), ['skipped', 'started'])
      await s.call('POST', `/api/workflows/runs/${first.id}/signals/end`)
      await s.call('POST', '/api/profiles', { name: 'gone', model: 'builtin/demo' })
      const of = await create({ profile: 'gone', prompt: 'Hello' })
      assert.equal((await s.call('DELETE', '/api/profiles/gone')).status, 204)
      await due(of, 0)
      assert.deepEqual(outcomes(await until(of, (all) => all.length > 0)), ['failed'])
      assert.equal((await s.call('POST', `/api/workflows/schedules/${of}/run`)).body.error, 'invalid_schedule')
    },
  )
  await t.test(
    'one that waits for its turn begins when the run before it is paused, which holds nothing up',
    async () => {
      const { body: failing } = await s.call('POST', '/api/workflows/definitions', {
        name: 'failing',
        nodes: [
          { id: 'a', type: 'wait', signal: 'end' },
          { id: 'b', type: 'condition', dependsOn: ['a'], if: 'input.nothing > 1' },
        ],
      })
      const id = await create({ workflowDefinitionId: failing.id, overlap: 'queue' })
      const { body: first } = await s.call('POST', `/api/workflows/schedules/${id}/run`)
      await due(id, 0)
      await until(id, (all) => outcomes(all).includes('queued'))
      await s.call('POST', `/api/workflows/runs/${first.id}/signals/end`)
      await until(id, (all) => outcomes(all).join() === 'started,started')
    },
  )
  await t.test('a tenant that was deleted begins nothing', async () => {
    const doomed = await s.other('doomed')
    const { body: own } = await doomed('POST', '/api/workflows/definitions', { name: 'x', nodes: quick.nodes })
    const order = { workflowDefinitionId: own.id, cron: '* * * * *', catchUp: 'all' }
    const { body: schedule } = await doomed('POST', '/api/workflows/schedules', order)
    assert.equal((await s.call('DELETE', '/api/tenants/doomed')).status, 204)
    const ago = {
      text: `UPDATE workflow_schedules SET next_at = now() - interval '1 hour' WHERE id = $1`,
      values: [schedule.id],
    }
    await s.database.batch('doomed', [ago])
    await Promise.all([s.wake(schedule.id, 'doomed'), other.wake(schedule.id, 'doomed')])
    const open = `SELECT 1 FROM pgboss.job WHERE data->>'scheduleId' = $1 AND state < 'completed' AND start_after <= now()`
    while ((await s.database.systemBatch<[object[]]>([{ text: open, values: [schedule.id] }]))[0].length > 0)
      await new Promise((resolve) => setTimeout(resolve, 20))
    const begun = { text: 'SELECT 1 FROM workflow_firings WHERE tenant_id = $1', values: ['doomed'] }
    assert.deepEqual(await s.database.batch('doomed', [begun]), [[]])
  })
  await t.test('a hostile walk: foreign ids, members, bodies of every shape, limits', () => hostileWalk(s, quick))
  await t.test('a profile alone, pause, resume, and what is refused', async () => {
    await s.call('POST', '/api/profiles', { name: 'echo', model: 'builtin/demo' })
    const id = await create({
      name: 'a\0b',
      profile: 'echo',
      prompt: 'Hello',
      cron: '0 9 * * *',
      timezone: 'Europe/Berlin',
    })
    const { body: run } = await s.call('POST', `/api/workflows/schedules/${id}/run`)
    assert.equal((await s.rests(run.id)).status, 3)
    assert.equal((await s.call('POST', `/api/workflows/schedules/${id}/pause`)).body.status, 'paused')
    assert.equal((await s.call('GET', `/api/workflows/schedules/${id}`)).body.nextTimes, undefined)
    assert.equal((await s.call('POST', `/api/workflows/schedules/${id}/resume`)).body.status, 'active')
    assert.equal((await s.call('GET', `/api/workflows/schedules/${id}`)).body.nextTimes.length, 5)
    const wrong = await s.call('POST', '/api/workflows/schedules', {
      cron: '99 * * * *',
      timezone: 'Mars/Base',
      profile: 'nobody',
    })
    assert.deepEqual([wrong.status, wrong.body.error], [400, 'invalid_schedule'])
    assert.ok(wrong.body.issues.length >= 3)
    assert.equal((await s.call('DELETE', `/api/workflows/schedules/${id}`)).status, 204)
    assert.equal((await s.call('GET', `/api/workflows/schedules/${id}`)).status, 404)
  })
})

async function hostileWalk(s: Stage, definition: Body): Promise<void> {
  const umbrella = await s.other('umbrella')
  const member = await s.member()
  const path = '/api/workflows/schedules'
  const order = { workflowDefinitionId: definition.id, cron: '0 0 1 1 *' }
  const { body: mine } = await s.call('POST', path, { ...order, name: 'a\0b', input: ['\0', null, { a: [] }] })
  assert.deepEqual([mine.name, mine.input], ['a\0b', ['\0', null, { a: [] }]])
  const writes = [
    ['POST', '/pause'],
    ['POST', '/resume'],
    ['POST', '/run'],
    ['DELETE', ''],
  ] as const
  for (const [method, what] of [...writes, ['GET', ''], ['GET', '/history']] as const) {
    assert.equal((await umbrella(method, `${path}/${mine.id}${what}`)).status, 404, what)
    const status = method === 'GET' ? 200 : 403
    assert.equal((await member(method, `${path}/${mine.id}${what}`)).status, status, what)
  }
  assert.equal((await member('POST', path, order)).status, 403)
  assert.deepEqual((await umbrella('GET', path)).body, [])
  // A definition of another tenant is as unknown as one that does not exist.
  const foreign = await umbrella('POST', path, order)
  const unknown = await umbrella('POST', path, { ...order, workflowDefinitionId: `${definition.id.slice(0, -1)}_` })
  assert.deepEqual([foreign.status, foreign.body.error], [400, 'invalid_schedule'])
  assert.deepEqual(foreign.body.issues.length, unknown.body.issues.length)
  for (const [wrong, at] of [
    [{ cron: '0 0 30 2 *' }, 'body/cron'],
    [{ cron: '* * * * * * * *' }, 'body/cron'],
    [{ cron: '*\0 * * * *' }, 'body/cron'],
    [{ cron: '0 0 1 1 * 1999' }, 'body/cron'],
    [{ timezone: 'UTC\0' }, 'body/timezone'],
    [{ timezone: '' }, 'body/timezone'],
    [{ prompt: 'Hello' }, 'body/prompt'],
    [{ workflowDefinitionId: undefined, profile: 'nobody', prompt: 'x' }, 'body/profile'],
    [{ workflowDefinitionId: undefined, profile: 'nobody', prompt: 'Hello {{ input.name' }, 'body/prompt'],
    [{ profile: 'nobody', prompt: 'x' }, 'body'],
    [{ workflowDefinitionId: undefined }, 'body'],
    [{ workflowDefinitionId: 'a\0b' }, 'body/workflowDefinitionId'],
    [{ jitterSeconds: 1e9 }, 'body/jitterSeconds'],
    [{ overlap: 'none' }, 'body/overlap'],
    [{ id: 'mine' }, 'body/id'],
  ] as const) {
    const { status, body } = await s.call('POST', path, { ...order, ...wrong })
    const paths = body.issues?.map((one: Body) => one.path)
    assert.ok(status === 400 && paths.includes(at), `${JSON.stringify(wrong)}: ${status} ${JSON.stringify(body)}`)
  }
  for (const body of [null, [], 'x', 1]) assert.equal((await s.call('POST', path, body)).status, 400)
  assert.equal((await s.call('POST', path, { ...order, input: 'x'.repeat(2_000_000) })).status, 413)
  assert.equal((await s.call('GET', `${path}/${mine.id}/history?limit=-1`)).status, 400)
  // Concurrent creations are counted one after the other.
  await s.call('PATCH', '/api/tenants/umbrella', { limits: { workflowSchedules: 2 } })
  const { body: own } = await umbrella('POST', '/api/workflows/definitions', { name: 'x', nodes: definition.nodes })
  const made = await Promise.all(
    Array.from({ length: 5 }, () => umbrella('POST', path, { ...order, workflowDefinitionId: own.id })),
  )
  assert.deepEqual(made.map(({ status }) => status).toSorted(), [201, 201, 409, 409, 409])
  assert.equal((await s.call('DELETE', `${path}/${mine.id}`)).status, 204)
  for (const [method, what] of writes) assert.equal((await s.call(method, `${path}/${mine.id}${what}`)).status, 404)
}

test('a time that a longer jitter before it has held back was not missed', () => {
  const body = { cron: '* * * * *', jitterSeconds: 3_600 }
  const [first, second] = [new Date('2026-06-01T10:00:00Z'), new Date('2026-06-01T10:01:00Z')] as const
  const turn = (id: string, at: Date): number => at.getTime() + jitterOf(id, body, at)
  let id = 'a'
  while (turn(id, first) < turn(id, second) + 120_000) id += 'a'
  const missed = (ms: number) => missedOf(id, body, [first, second], new Date(turn(id, first) + ms))
  assert.deepEqual([missed(1_000), missed(61_000)], [[], [first, second]])
})

test('a schedule whose turn is not soon is woken for it, so that nobody else waits meanwhile', async () => {
  const sent: Wake[] = []
  let handled = 0
  const row = { document: JSON.stringify({ profile: 'p', prompt: 'x' }) }
  const schedulesOf = (waitMs: number) =>
    new Schedules({
      database: { batch: async () => [[row]], tenant: async () => void handled++ },
      store: { refusal: async () => undefined },
      wakeUps: { send: async (wakes: Wake[]) => void sent.push(...wakes) },
      limits: { steady: () => () => waitMs },
      lookups: () => ({}),
    } as unknown as SchedulesDeps)
  const id = newId('wfsch')
  await schedulesOf(0).fire('acme', id)
  await schedulesOf(20).fire('acme', id)
  assert.deepEqual([handled, sent.length], [2, 0])
  await schedulesOf(4_000).fire('acme', id)
  const what = { tenantId: 'acme', scheduleId: id, turn: 'taken' }
  assert.deepEqual([handled, sent], [2, [{ tenantId: 'acme', what, key: `${id}/turn`, afterMs: 4_000 }]])
  await schedulesOf(4_000).fire('acme', id, true)
  assert.deepEqual([handled, sent.length], [3, 1])
})

test('a wait is over by the clock of the database, whatever that of a process says', async (t) => {
  const until = '"2026-06-01T12:00:00+02:00"'
  const now = Date.parse('2026-06-01T09:59:00Z')
  t.mock.timers.enable({ apis: ['Date'], now: now + 3_600_000 })
  assert.equal(dueIn({ seconds: 'null', until }, now), 60_000)
  assert.equal(dueIn({ seconds: 'null', until }, now + 61_000), 0)
})

test('daylight saving: a time that a night does not have comes at the end of its gap, one that it has twice comes once', () => {
  const iso = (from: string, cron: string): string[] =>
    timesOf({ cron, timezone: 'Europe/Berlin' }, new Date(from), 3).map((at) => at.toISOString())
  assert.deepEqual(iso('2026-03-28T00:00:00Z', '30 2 * * *'), [
    '2026-03-28T01:30:00.000Z',
    '2026-03-29T01:00:00.000Z',
    '2026-03-30T00:30:00.000Z',
  ])
  assert.deepEqual(iso('2026-10-24T00:00:00Z', '30 2 * * *'), [
    '2026-10-24T00:30:00.000Z',
    '2026-10-25T00:30:00.000Z',
    '2026-10-26T01:30:00.000Z',
  ])
})

test('a long stop: the last times are told from all behind it, through both changes of the clocks', () => {
  const every = { cron: '*/15 * * * *', timezone: 'Europe/Berlin' }
  for (const [after, until] of [
    ['2026-03-28T12:00:00Z', '2026-03-29T12:00:00.500Z'],
    ['2026-10-24T12:00:00Z', '2026-10-25T12:00:00.500Z'],
  ] as const) {
    const all = timesOf(every, new Date(after), 1_000, new Date(until))
    assert.equal(all.length, 96)
    assert.deepEqual(lastTimesOf(every, new Date(after), 50, new Date(until)), all.slice(-50))
    assert.deepEqual(lastTimesOf(every, all.at(-3)!, 50, new Date(until)), all.slice(-2))
  }
})
