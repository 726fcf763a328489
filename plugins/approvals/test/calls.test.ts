import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Body, type Server, serve, world } from './stage.ts'

const payer = { name: 'payer', model: 'openai/m', tools: ['pay', 'note'], requireApproval: ['p*y'] }

/** Decides an approval. */
const decide = (s: Pick<Server, 'call'>, id: string, decision: string, comment?: string) =>
  s.call('POST', `/api/approvals/${id}/resolve`, { decision, ...(comment === undefined ? {} : { comment }) })

test('calls of tools that wait for people', async (t) => {
  const w = await world(t)
  const s = await serve(t, w)
  const effects = (): unknown[] => w.effects.splice(0).map(({ tool, input }) => [tool, input])
  const profile = async (more: object): Promise<void> => {
    const { status, body } = await s.call('POST', '/api/profiles', { ...payer, ...more })
    assert.equal(status, 201, JSON.stringify(body))
  }
  await profile({})

  await t.test('an approved call is made once, and what was done before is not done again', async () => {
    const webhook = { url: 'https://hooks.example/approvals' }
    const id = await s.run('payer', 'note({"n":1})\npay({"sum":3,"to":"\\u0000"});note({"n":2})', { webhook })
    const [approval] = await s.waiting(id)
    assert.deepEqual(
      [approval.kind, approval.tool, approval.arguments, approval.profile, approval.runId],
      ['tool', 'pay', { sum: 3, to: '\uFFFD' }, 'payer', id],
    )
    await s.parked(id)
    // Time in which a run waits for people does not count for its timeout, however long it is.
    const longAgo = `UPDATE runs SET started_at = started_at - interval '9 days', parked_at = parked_at - interval '9 days' WHERE id = $1`
    await s.database.batch('default', [{ text: longAgo, values: [id] }])
    assert.equal((await decide(s, approval.id, 'approve')).body.status, 'approved')
    const run = await s.over(id)
    assert.deepEqual([run.status, run.error], ['ok', undefined])
    const done = [
      ['note', { n: 1 }],
      ['note', { n: 2 }],
      ['pay', { sum: 3, to: '\0' }],
    ] as const
    assert.deepEqual(effects(), done)
    assert.match(run.result, /Done: .*pay .*sum.*3/)
    const stages = (run.events as Body[]).flatMap(({ stage }) => stage ?? [])
    assert.ok(stages.includes('approval_waiting') && stages.includes('resumed'), stages.join())
    assert.equal((await decide(s, approval.id, 'reject')).body.error, 'already_resolved')
    const { body: told } = await s.call('GET', '/api/webhooks/deliveries')
    assert.deepEqual(
      told.map(({ type }: Body) => type),
      ['run.finished', 'approval.resolved', 'approval.waiting'],
    )
  })
  await t.test('a rejected call is not made, and the model is told why', async () => {
    const id = await s.run('payer', 'pay({"sum":1});pay({"sum":2})\nnote({})')
    const both = await s.waiting(id, 2)
    const [one, two] = both.toSorted((a, b) => a.arguments.sum - b.arguments.sum)
    await decide(s, one.id, 'approve')
    await decide(s, two.id, 'reject', 'far too much')
    const run = await s.over(id)
    assert.match(run.result, /rejected by a person, who says: far too much/)
    assert.deepEqual(effects(), [
      ['pay', { sum: 1 }],
      ['note', {}],
    ])
    const { body: page } = await s.call('GET', `/api/approvals?status=rejected&kind=tool&profile=payer&limit=1`)
    assert.deepEqual([page[0].id, page[0].comment], [two.id, 'far too much'])
  })
  await t.test('what nobody decides in time follows its rule', async () => {
    for (const [onExpiry, made] of [
      ['reject', []],
      ['approve', [['pay', {}]]],
    ] as const) {
      await profile({ name: `late-${onExpiry}`, approvals: { onExpiry, expiresInSeconds: 3_600 } })
      const id = await s.run(`late-${onExpiry}`, 'pay({})')
      const [approval] = await s.waiting(id)
      await s.parked(id)
      const due = { text: `UPDATE approvals SET expires_at = now() WHERE id = $1`, values: [approval.id] }
      await s.database.batch('default', [due])
      // A decision after the expiry is refused, even if `onExpiry` has not been applied yet.
      assert.equal((await decide(s, approval.id, 'reject')).body.error, 'already_resolved')
      await s.jobs.ask('approvals-sweep')
      await s.over(id)
      assert.deepEqual(effects(), made)
      assert.equal((await s.call('GET', `/api/approvals/${approval.id}`)).body.resolvedBy, 'expiry')
    }
  })
  await t.test('who may decide, and how much may wait', async () => {
    await profile({ name: 'strict', approvals: { role: 'admin' } })
    const member = await s.as('member')
    const id = await s.run('strict', 'pay({})')
    const [approval] = await s.waiting(id)
    const refused = await decide({ call: member }, approval.id, 'approve')
    assert.deepEqual([refused.status, refused.body.error], [403, 'wrong_approver'])
    await s.call('PATCH', '/api/tenants/default', { limits: { openApprovals: 1 } })
    const over = await s.over(await s.run('payer', 'pay({})'))
    assert.match(over.result, /openApprovals/)
    await s.call('PATCH', '/api/tenants/default', { limits: { openApprovals: 10 } })
    // Cancelling a run closes its approval at once and frees its session.
    await s.parked(id)
    assert.equal((await s.call('DELETE', `/api/runs/${id}`)).status < 300, true)
    assert.equal((await s.call('GET', `/api/runs/${id}`)).body.status, 'cancelled')
    assert.equal((await s.call('GET', `/api/approvals/${approval.id}`)).body.status, 'cancelled')
    assert.equal((await s.call('GET', `/api/sessions/${approval.sessionId}`)).body.status, 'idle')
    assert.deepEqual(effects(), [])
  })
  await t.test('a pattern that names no tool of the profile is refused, and one that nobody could keep', async () => {
    for (const [more, why] of [
      [{ requireApproval: ['payy'] }, /names no tool/],
      [{ requireApproval: ['a b'] }, /requireApproval/],
      [{ requireApproval: ['pay'], approvals: { expiresInSeconds: 0 } }, /expiresInSeconds/],
    ] as const) {
      const { status, body } = await s.call('POST', '/api/profiles', { ...payer, ...more })
      assert.deepEqual([status, why.test(JSON.stringify(body))], [400, true], JSON.stringify(body))
    }
  })
  await t.test('a chat shows that a tool waits, and goes on in its stream', async () => {
    const { body: agent } = await s.call('POST', '/api/profiles/payer/publish', {
      slug: 'payer',
      exposeToolEvents: true,
    })
    const { body: key } = await s.call('POST', '/api/profiles/payer/keys', { label: 'web' })
    const answer = s.chat('/v1/chat/default/payer/stream', key.token, 'pay({"sum":4})')
    const [approval] = await s.until(async () => {
      const { body } = await s.call('GET', '/api/approvals?status=waiting')
      return body.length > 0 ? body : undefined
    })
    await s.parked(approval.runId)
    await decide(s, approval.id, 'approve')
    const events = [...(await answer).matchAll(/event: (\w+)\ndata: (.*)/g)]
    const tools = events.filter(([, name]) => name === 'tool').map(([, , data]) => JSON.parse(data!) as Body)
    assert.deepEqual(
      tools.map(({ status }) => status),
      ['running', 'waiting', 'ok'],
    )
    assert.equal(new Set(tools.map(({ id }) => id)).size, 1)
    assert.equal(events.at(-1)![1], 'done', agent.slug)
    assert.deepEqual(effects(), [['pay', { sum: 4 }]])
  })
  await t.test('a run goes on once its tenant has a slot for it', async () => {
    const limits = (own: object) => s.call('PATCH', '/api/tenants/default', { limits: own })
    const ids = [await s.run('payer', 'pay({"sum":6})'), await s.run('payer', 'pay({"sum":7})')]
    await Promise.all(ids.map(async (id) => [await s.waiting(id), await s.parked(id)]))
    await limits({ runningRuns: 1 })
    const begun = Promise.withResolvers<void>()
    const end = Promise.withResolvers<void>()
    w.before = async (tool) => {
      if (tool !== 'note') return
      begun.resolve()
      await end.promise
    }
    const other = await s.run('payer', 'note({})')
    await begun.promise
    for (const id of ids) await decide(s, (await s.waiting(id))[0].id, 'approve')
    const wakeUps = `SELECT 1 FROM pgboss.job WHERE name = 'approvals' AND data->>'runId' = ANY($1) AND state < 'completed'`
    await s.until(async () => (await s.database.systemBatch([{ text: wakeUps, values: [ids] }]))[0]!.length === 0)
    const [owners] = await s.database.batch<[{ claim_owner: string }[]]>('default', [
      { text: 'SELECT claim_owner FROM runs WHERE id = ANY($1)', values: [ids] },
    ])
    assert.deepEqual(
      owners.map(({ claim_owner }) => claim_owner),
      ['parked', 'parked'],
    )
    end.resolve()
    for (const id of [other, ...ids]) assert.equal((await s.over(id)).status, 'ok')
    assert.equal(effects().length, 3)
    w.before = async () => {}
    await limits({ runningRuns: null })
  })
  await t.test('what a run delegated before it waited counts when it goes on', async () => {
    await s.call('POST', '/api/profiles', { name: 'helper', model: 'openai/m' })
    await profile({ name: 'boss', tools: ['delegate', 'pay'] })
    await s.call('PATCH', '/api/tenants/default', { limits: { delegatedRuns: 1 } })
    const delegate = (prompt: string): string => `delegate({"profile":"helper","prompt":"${prompt}"})`
    const id = await s.run('boss', [delegate('once'), 'pay({"sum":8})', delegate('again')].join('\n'))
    const [approval] = await s.waiting(id)
    await s.parked(id)
    await decide(s, approval.id, 'approve')
    assert.match((await s.over(id)).result, /limit delegatedRuns, 1/)
    assert.equal((await s.call('GET', `/api/runs?profile=helper`)).body.length, 1)
    await s.call('PATCH', '/api/tenants/default', { limits: { delegatedRuns: null } })
    assert.deepEqual(effects(), [['pay', { sum: 8 }]])
  })
  await t.test('another server goes on with what this one has left, without doing again what is done', async () => {
    const id = await s.run('payer', 'note({"n":1});pay({"sum":5})')
    const [approval] = await s.waiting(id)
    await s.parked(id)
    await s.kernel.stop()
    const other = await serve(t, w)
    const page = await other.call('GET', `/api/runs/${id}`)
    assert.equal(page.body.status, 'running')
    await decide(other, approval.id, 'approve')
    assert.equal((await other.over(id)).status, 'ok')
    assert.deepEqual(effects(), [
      ['note', { n: 1 }],
      ['pay', { sum: 5 }],
    ])
    const { body: next } = await other.call(
      'GET',
      `/api/runs/${await other.run('payer', 'well', { sessionId: approval.sessionId })}`,
    )
    assert.equal((await other.over(next.runId)).status, 'ok')
  })
})
