import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { AppError } from '#kernel'
import { fleetErrors } from '#contracts/run-errors'
import { Fleet } from '#contracts/runner'
import { fake } from '#testing'
import { Away } from '../../plugins/retention/runners.ts'
import { chat, run, type Stage, stage } from './stage.ts'

interface Told extends Stage {
  /** What runners were told, as runner, tenant and session. */
  readonly told: string[]
  /** Runners that do not answer. */
  readonly away: Set<string>
  /** Runners that take what they are asked, and never answer. */
  readonly silent: Set<string>
  /** The calls of those. */
  readonly asked: string[]
  /** What happens while runners are told, once each. */
  readonly meanwhile: (() => Promise<void>)[]
  erase(): Promise<Record<string, unknown>>
}

/** Retention with the runners `here` and `far`. */
async function withRunners(t: TestContext): Promise<Told> {
  const told: string[] = []
  const away = new Set<string>()
  const silent = new Set<string>()
  const asked: string[] = []
  const meanwhile: Told['meanwhile'] = []
  const link = (hash: string) => ({
    hash,
    deleteSession: async (tenantId: string, id: string) => {
      if (away.has(hash)) throw new AppError('runner_unreachable', 503, { retryable: true })
      if (silent.has(hash)) {
        asked.push(`${tenantId} ${id}`)
        throw noAnswer()
      }
      // As a write of a profile does: the tenant goes on meanwhile.
      if (tenantId === 'acme')
        await staged.sql('acme', `UPDATE tenants SET broadcast_revision = broadcast_revision + 1 WHERE id = 'acme'`)
      await meanwhile.shift()?.()
      told.push(`${hash} ${tenantId} ${id}`)
    },
  })
  const links: Readonly<Record<string, object>> = { here: link('here'), far: link('far') }
  const fleet = fake(Fleet, { owner: (_: string, runner = 'none') => links[runner] } as unknown as Fleet)
  const staged = await stage(t, {}, undefined, {}, [fleet])
  const erase = async () => {
    const reply = await staged.call('DELETE', '/api/end-users/ann', 'acme')
    assert.equal(reply.statusCode, 200, reply.body)
    return reply.json<Record<string, unknown>>()
  }
  return { ...staged, told, away, silent, asked, meanwhile, erase }
}

const noAnswer = () => fleetErrors.runnerUnreachable({ retryable: false })
const ann = { endUser: 'ann' }

test('runners are told of every session in which an erased person was, also of those in which others had runs, which stay shut down', async (t) => {
  const { sql, count, told, erase } = await withRunners(t)
  await sql(
    'acme',
    ...run('acme', 'run_ann', 0, 'sess-shared', ann),
    ...run('acme', 'run_bob', 0, 'sess-shared', { endUser: 'bob' }),
    ...run('acme', 'run_own', 0, 'sess-own', ann),
    ...run('acme', 'run_other', 0, 'sess-other', { endUser: 'bob' }),
    ...Array.from({ length: 30 }, (_, i) => chat('acme', `a${i}`, 0, 'conv_a', 'ann')).flat(),
    `UPDATE sessions SET runner_hash = CASE id WHEN 'sess-own' THEN 'far' ELSE 'here' END`,
  )
  const erased = await erase()
  assert.deepEqual([erased['runs'], erased['sessions'], erased['pending']], [32, 2, 0])
  assert.equal(erased['untoldSessions'], undefined)
  assert.deepEqual(told.toSorted(), ['far acme sess-own', 'here acme sess-conv_a', 'here acme sess-shared'])
  assert.deepEqual(
    await Promise.all(['sessions', 'session_state', 'end_user_sessions'].map((table) => count('acme', table))),
    [2, 1, 0],
  )
  assert.equal(
    await count('acme', `sessions WHERE id = 'sess-shared' AND status = 'shutdown' AND last_prompt IS NULL`),
    1,
  )
})

test('runners are told of the conversations of an erased person of which retention has deleted all runs', async (t) => {
  const { sql, count, call, pass, told, erase } = await withRunners(t)
  await sql(
    'acme',
    ...chat('acme', 'a', 9, 'conv_a', 'ann'),
    ...chat('acme', 'b', 9, 'conv_b', 'ann'),
    ...chat('acme', 'c', 9, 'conv_c', 'bob'),
    `UPDATE sessions SET runner_hash = 'here'`,
    `DELETE FROM sessions WHERE id = 'sess-conv_b'`,
  )
  await call('PATCH', '/api/tenants/acme', 'default', { retention: { runs: 7 } })
  await pass()
  assert.deepEqual([await count('acme', 'runs'), await count('acme', 'conversations'), told], [0, 3, []])
  const erased = await erase()
  assert.deepEqual([erased['conversations'], erased['sessions'], erased['pending']], [2, 1, 0])
  assert.deepEqual(told, ['here acme sess-conv_a'])
  assert.deepEqual([await count('acme', 'sessions'), await count('acme', 'end_user_sessions')], [1, 0])
})

test('the erasure of a person waits for a runner that does not answer, may be asked for again, and is proven when it was told', async (t) => {
  const { sql, count, call, pass, told, away, erase } = await withRunners(t)
  await sql(
    'acme',
    ...chat('acme', 'a', 0, 'conv_a', 'ann'),
    ...run('acme', 'run_b', 0, 'sess-b', ann),
    `UPDATE sessions SET runner_hash = CASE id WHEN 'sess-b' THEN 'far' ELSE 'here' END`,
  )
  away.add('far')
  const first = await erase()
  assert.deepEqual([first['runs'], first['sessions'], first['untoldSessions'], first['pending']], [2, 1, 1, 1])
  assert.deepEqual(
    [await count('acme', 'runs'), await count('acme', 'session_state'), await count('acme', 'sessions')],
    [0, 0, 1],
  )
  assert.deepEqual(await erase(), first)
  await pass()
  assert.deepEqual([told, await count('acme', 'end_user_erasures')], [['here acme sess-conv_a'], 1])
  away.clear()
  await pass()
  assert.deepEqual(told, ['here acme sess-conv_a', 'far acme sess-b'])
  assert.deepEqual([await count('acme', 'sessions'), await count('acme', 'end_user_erasures')], [0, 0])
  const [entry] = (await call('GET', '/api/audit', 'acme')).json()
  assert.deepEqual(
    [entry.action, entry.detail],
    ['end-users.erased', { conversations: 1, messages: 2, runs: 2, sessions: 2, data: {}, pending: 0 }],
  )
})

test('a runner that does not answer for a day, since the first try, is then in the proof of a person’s erasure', async (t) => {
  const { sql, count, call, pass, away, erase } = await withRunners(t)
  await sql('acme', ...run('acme', 'run_b', 0, 'sess-b', ann), `UPDATE sessions SET runner_hash = 'far'`)
  away.add('far')
  await erase()
  await sql('acme', `UPDATE end_user_erasures SET asked_at = now() - interval '25 hours'`)
  await pass()
  assert.equal(await count('acme', 'end_user_erasures'), 1)
  await sql('acme', `UPDATE end_user_erasures SET untold_since = now() - interval '25 hours'`)
  await pass()
  for (const table of ['end_user_erasures', 'end_user_sessions', 'sessions'])
    assert.equal(await count('acme', table), 0, table)
  const [entry] = (await call('GET', '/api/audit', 'acme')).json()
  assert.deepEqual([entry.action, entry.detail.untoldSessions, entry.detail.pending], ['end-users.erased', 1, 0])
})

test('under a legal hold that is set meanwhile nothing more of a person is erased, and no runner is told', async (t) => {
  const { sql, count, pass, told, away, erase } = await withRunners(t)
  await sql('acme', ...run('acme', 'run_b', 0, 'sess-b', ann), `UPDATE sessions SET runner_hash = 'far'`)
  away.add('far')
  await erase()
  away.clear()
  await sql('acme', `UPDATE tenants SET legal_hold = true WHERE id = 'acme'`)
  await pass()
  assert.deepEqual([told, await count('acme', 'sessions')], [[], 1])
})

test('what a pass notes while the request of the same person is about to end is not forgotten', async (t) => {
  const { sql, count, pass, told, away, meanwhile, erase } = await withRunners(t)
  await sql(
    'acme',
    ...run('acme', 'run_a', 0, 'sess-a', ann),
    ...run('acme', 'run_b', 0, 'sess-0', ann),
    `UPDATE sessions SET runner_hash = CASE id WHEN 'sess-0' THEN 'far' ELSE 'here' END`,
    `UPDATE sessions SET status = 'running', claim_run = 'run_c', claim_owner = 'x' WHERE id = 'sess-0'`,
  )
  away.add('far')
  // The request has passed by the place of the session that the pass notes.
  meanwhile.push(async () => {
    await sql('acme', `UPDATE sessions SET status = 'idle', claim_run = NULL, claim_owner = NULL WHERE id = 'sess-0'`)
    await pass()
  })
  const erased = await erase()
  assert.deepEqual([erased['runs'], erased['pending'], erased['untoldSessions']], [2, 1, 1])
  away.clear()
  told.length = 0
  await pass()
  assert.deepEqual(told, ['far acme sess-0'])
  for (const table of ['end_user_erasures', 'end_user_sessions', 'sessions'])
    assert.equal(await count('acme', table), 0, table)
})

test('runners are told of noted sessions of which nobody’s request is left', async (t) => {
  const { sql, count, pass, told, away } = await withRunners(t)
  await sql(
    'acme',
    `INSERT INTO sessions (tenant_id, id, profile, runtime, profile_snapshot, status) VALUES ('acme', 'sess-a', 'p', 'general', '{}', 'shutdown')`,
    ...['ann', 'bob'].map(
      (who) =>
        `INSERT INTO end_user_sessions (tenant_id, person, session_id, runner_hash) VALUES ('acme', sha256('${who}'), 'sess-a', 'far')`,
    ),
  )
  away.add('far')
  await pass()
  assert.deepEqual([told, await count('acme', 'end_user_sessions')], [[], 2])
  away.clear()
  await pass()
  assert.deepEqual(
    [told, await count('acme', 'end_user_sessions'), await count('acme', 'sessions')],
    [['far acme sess-a'], 0, 0],
  )
})

test('a runner that takes calls and does not answer is asked as often as there are calls at once, for all persons and tenants of a pass', async (t) => {
  const { sql, count, call, pass, silent, asked, erase } = await withRunners(t)
  const sessions = (tenant: string, who: string) =>
    Array.from({ length: 40 }, (_, i) => run(tenant, `run_${who}_${i}`, 0, `sess-${who}-${i}`, { endUser: who })).flat()
  await sql('acme', ...sessions('acme', 'ann'), ...sessions('acme', 'bob'), `UPDATE sessions SET runner_hash = 'far'`)
  await sql('globex', ...sessions('globex', 'carl'), `UPDATE sessions SET runner_hash = 'far'`)
  silent.add('far')
  const erased = await erase()
  assert.deepEqual([erased['untoldSessions'], asked.length], [40, 16])
  await call('DELETE', '/api/end-users/bob', 'acme')
  await call('DELETE', '/api/tenants/globex?erase=true')
  asked.length = 0
  await pass()
  assert.equal(asked.length, 16)
  silent.clear()
  await pass()
  assert.deepEqual([await count('acme', 'sessions'), await count('globex', 'sessions')], [0, 0])
})

test('three calls in a row without an answer are a runner that is away; calls that only take long are not', async () => {
  const away = new Away()
  const silent = () => assert.rejects(away.ask('far', () => Promise.reject(noAnswer())))
  const heard = () => away.ask('far', async () => {})
  for (const call of [silent, silent, heard, silent, silent]) await call()
  // It answers others meanwhile, if only by a failure.
  const fails = Promise.withResolvers<void>()
  const long = [1, 2, 3].map(() => assert.rejects(away.ask('far', () => fails.promise)))
  await assert.rejects(away.ask('far', () => Promise.reject(fleetErrors.runnerFailed())))
  fails.reject(noAnswer())
  await Promise.all(long)
  assert.equal(away.has('far'), false)
  for (const call of [silent, silent, silent]) await call()
  assert.equal(away.has('far'), true)
  assert.equal(away.has('here'), false)
})
