import assert from 'node:assert/strict'
import { test } from 'node:test'
import { failureOf, sentenceOf, stage, stageWithOAuth, startReceiver } from './stage.ts'

const due = `due_at = now() - interval '1 second'`
const ended = `expires_at = now() - interval '1 second', ${due}`
const refreshes = (asked: readonly { readonly grant: string }[]): number =>
  asked.filter(({ grant }) => grant === 'refresh_token').length

test('a token is renewed once for all that want it, on all conductors; the refresh token is the new one from then on', async (t) => {
  const s = await stageWithOAuth(t)
  const other = await stage(t, { dsn: s.dsn, own: s.own })
  await s.connect({ endUserId: 'ann' })
  const gate = Promise.withResolvers<void>()
  s.issuer.gate = gate.promise
  await s.age(due)
  assert.deepEqual(
    [(await s.read('ann')).status, s.sent.at(-1)],
    [200, 'Bearer access-1'],
    'nobody waits while it holds',
  )
  await s.age(`expires_at = now() - interval '1 second'`)
  const reads = [s.read('ann'), s.read('ann', other.call), s.read('ann'), s.read('ann', other.call)]
  gate.resolve()
  assert.deepEqual(await Promise.all(reads.map(async (read) => (await read).status)), [200, 200, 200, 200])
  assert.equal(refreshes(s.issuer.asked), 1)
  // The server takes each refresh token once.
  for (let n = 2; n <= 4; n++) {
    await s.age(ended)
    assert.equal((await s.read('ann', other.call)).status, 200)
    assert.equal(refreshes(s.issuer.asked), n)
  }
  assert.equal(s.issuer.asked.at(-1)!.form['resource'], s.server.url)
})

test('tokens are renewed before they end, without anybody who wants them; of those that nobody asks for, too', async (t) => {
  const s = await stageWithOAuth(t)
  await s.connect({ endUserId: 'ann' })
  await s.connect({ endUserId: 'bob' })
  await s.renew()
  assert.equal(refreshes(s.issuer.asked), 0, 'nothing is due')
  const [left] = await s.rows('SELECT bool_and(due_at < expires_at) AS before_its_end FROM app_connections')
  assert.equal(left!['before_its_end'], true)
  await s.database.systemBatch([{ text: `UPDATE app_due_tenants SET due_at = now()` }])
  await s.age(due)
  const other = await stage(t, { dsn: s.dsn, own: s.own })
  await Promise.all([s.renew(), other.renew()])
  assert.equal(refreshes(s.issuer.asked), 2)
  const [next] = await s.rows(
    `SELECT count(*)::int AS n FROM app_connections WHERE due_at > now() + interval '40 minutes'`,
  )
  assert.equal(next!['n'], 2)
  const [[tenant]] = await s.database.systemBatch<[{ later: boolean }[]]>([
    { text: `SELECT due_at > now() + interval '40 minutes' AS later FROM app_due_tenants` },
  ])
  assert.equal(tenant!.later, true, 'the tenant is looked at again when something is due')
})

test('a token of which nobody says how long it holds is a short one, if it can be renewed', async (t) => {
  const s = await stageWithOAuth(t)
  const holds = async (): Promise<unknown> =>
    (await s.rows('SELECT round(extract(epoch FROM expires_at - now()) / 60)::int AS n FROM app_connections'))[0]!['n']
  for (const more of [{}, { expires_in: null }, { expires_in: 'soon' }, { expires_in: -1 }]) {
    s.issuer.more = more
    await s.connect({ endUserId: 'ann' })
    assert.equal(await holds(), 5, JSON.stringify(more))
  }
  s.issuer.more = { refresh_token: undefined }
  await s.connect({ endUserId: 'ann' })
  assert.equal(await holds(), null, 'one that cannot be renewed holds until the app says otherwise')
  assert.equal((await s.state())!['renewable'], false)
  s.issuer.forget()
  assert.deepEqual(failureOf(await s.read('ann')), [409, 'app_not_connected'])
  assert.equal((await s.state())!['state'], 'expired')
})

test('a token that the app takes back before its time is renewed; a server that takes none is not asked for ever', async (t) => {
  const s = await stageWithOAuth(t)
  await s.connect({ endUserId: 'ann' })
  s.issuer.forget()
  assert.equal((await s.read('ann')).status, 200)
  assert.deepEqual([refreshes(s.issuer.asked), s.sent.at(-1)], [1, 'Bearer access-2'])
  s.server.before = (_, response) => (response.writeHead(401).end(), true)
  assert.deepEqual(failureOf(await s.read('ann')), [502, 'app_unavailable'])
  assert.equal(refreshes(s.issuer.asked), 2)
})

test('a token that the app refuses while it is being renewed elsewhere is waited for: a refresh token is good once', async (t) => {
  const s = await stageWithOAuth(t)
  const other = await stage(t, { dsn: s.dsn, own: s.own })
  await s.connect({ endUserId: 'ann' })
  const gate = Promise.withResolvers<void>()
  s.issuer.gate = gate.promise
  await s.age(due)
  assert.equal((await s.read('ann')).status, 200)
  while (refreshes(s.issuer.asked) === 0) await new Promise((resolve) => setImmediate(resolve))
  const lease = async () =>
    (await s.rows('SELECT leased_until::text AS until, expires_at <= now() AS doubted FROM app_connections'))[0]!
  const { until } = await lease()
  s.issuer.forget()
  const refused = s.read('ann', other.call)
  let now = await lease()
  while (now['doubted'] !== true) now = await lease()
  assert.equal(now['until'], until, 'the lease is still that of who renews')
  gate.resolve()
  assert.equal((await refused).status, 200)
  assert.equal(refreshes(s.issuer.asked), 1)
})

test('whoever was only slow neither brings an old account back nor ends a new one', async (t) => {
  const s = await stageWithOAuth(t)
  const other = await stage(t, { dsn: s.dsn, own: s.own })
  await s.connect({ endUserId: 'ann' })
  const gate = Promise.withResolvers<void>()
  s.issuer.gate = gate.promise
  await s.age(ended)
  const slow = s.read('ann')
  while (refreshes(s.issuer.asked) === 0) await new Promise((resolve) => setImmediate(resolve))
  // The lease of the slow renewal expires, and meanwhile the owner connects the account again.
  s.issuer.gate = Promise.resolve()
  await s.connect({ endUserId: 'ann' })
  assert.equal((await s.read('ann', other.call)).status, 200)
  const [kept] = await s.rows('SELECT secret, fence FROM app_connections')
  gate.resolve()
  assert.equal((await slow).status, 200, 'it uses what is stored')
  assert.deepEqual((await s.rows('SELECT secret, fence FROM app_connections'))[0], kept)

  // A failure to renew the old grant must not affect the new grant.
  s.issuer.refusal = [400, 'invalid_grant']
  const later = Promise.withResolvers<void>()
  s.issuer.gate = later.promise
  const asked = refreshes(s.issuer.asked)
  await s.age(ended)
  const failing = s.read('ann')
  while (refreshes(s.issuer.asked) === asked) await new Promise((resolve) => setImmediate(resolve))
  s.issuer.refusal = undefined
  s.issuer.gate = Promise.resolve()
  await s.connect({ endUserId: 'ann' })
  s.issuer.refusal = [400, 'invalid_grant']
  later.resolve()
  assert.equal((await failing).status, 200)
  assert.equal((await s.state())!['state'], 'active')
})

test('an account that ends is told of, and one that works again as well; what may pass is waited for', async (t) => {
  const receiver = await startReceiver(t)
  const s = await stageWithOAuth(
    t,
    { connection: 'user' },
    { variables: { AGENT_ORC_WEBHOOK_ALLOW_HOSTS: receiver.allow } },
  )
  const webhook = { url: receiver.url }
  const id = await s.connect({ endUserId: 'ann', webhook })
  const told = async (n: number): Promise<unknown[]> => {
    const { type, data } = (await receiver.next(n)) as { type: string; data: Record<string, unknown> }
    return [type, data['id'], data['endUserId'], data['toolkit'], data['state'], data['previousState']]
  }
  assert.deepEqual(await told(1), ['app.connection.active', id, 'ann', 'files', 'active', 'initiated'])

  s.issuer.refusal = [503, 'temporarily_unavailable']
  await s.age(due)
  await s.renew()
  assert.deepEqual([(await s.state())!['state'], (await s.read('ann')).status], ['active', 200], 'it still holds')
  for (let n = 0; n < 3; n++) {
    await s.age(ended)
    const failed = await s.read('ann')
    assert.deepEqual(failureOf(failed), [502, 'app_unavailable'])
    assert.match(sentenceOf(failed), /answered 503 and temporarily_unavailable/)
  }
  assert.deepEqual(await told(2), ['app.connection.failed', id, 'ann', 'files', 'failed', 'active'])
  const asked = s.issuer.asked.length
  assert.deepEqual(failureOf(await s.read('ann')), [502, 'app_unavailable'])
  assert.equal(s.issuer.asked.length, asked, 'it is not asked again at once')
  s.issuer.refusal = undefined
  await s.age(due)
  assert.equal((await s.read('ann')).status, 200)
  assert.deepEqual(await told(3), ['app.connection.active', id, 'ann', 'files', 'active', 'failed'])

  s.issuer.refusal = [400, 'invalid_grant']
  await s.age(ended)
  const over = await s.read('ann')
  assert.deepEqual([failureOf(over), over.body['state']], [[409, 'app_not_connected'], 'expired'])
  assert.doesNotMatch(over.text, /quoted/)
  assert.deepEqual(await told(4), ['app.connection.expired', id, 'ann', 'files', 'expired', 'active'])
  const [row] = await s.rows('SELECT secret FROM app_connections')
  assert.equal(row!['secret'], null)
  s.issuer.refusal = undefined
  // The webhook stays the same when the account is connected again.
  assert.equal(await s.connect({ endUserId: 'ann' }), id)
  assert.deepEqual(await told(5), ['app.connection.active', id, 'ann', 'files', 'active', 'initiated'])
  const [delivery] = (await s.call('GET', '/api/webhooks/deliveries?limit=1')).body as unknown as Record<
    string,
    unknown
  >[]
  assert.deepEqual([delivery!['type'], delivery!['runId']], ['app.connection.active', undefined])
})

test('a revoked account is used no more from then on, and is taken back at its server, later if that is away', async (t) => {
  const s = await stageWithOAuth(t)
  const id = await s.connect({ endUserId: 'ann' })
  const revoke = async () => (await s.call('DELETE', `/api/apps/files/connections/${id}`)).status
  assert.equal(await revoke(), 204)
  assert.deepEqual(s.issuer.revoked, ['refresh-1', 'access-1'])
  const read = await s.read('ann')
  assert.deepEqual([failureOf(read), read.body['state']], [[409, 'app_not_connected'], 'revoked'])
  assert.equal(await revoke(), 204, 'may be repeated')
  assert.equal((await s.call('DELETE', `/api/apps/other/connections/${id}`)).status, 404)

  const back = String((await s.begin({ endUserId: 'ann' })).body['url'])
  await revoke()
  assert.equal((await s.browse(s.issuer.agree(back))).status, 400, 'a link from before is no more')

  // A connection that is revoked while its owner comes back is also revoked at its server.
  const late = String((await s.begin({ endUserId: 'ann' })).body['url'])
  const gate = Promise.withResolvers<void>()
  s.issuer.gate = gate.promise
  const coming = s.browse(s.issuer.agree(late))
  while (s.issuer.asked.length < 2) await new Promise((resolve) => setImmediate(resolve))
  await revoke()
  gate.resolve()
  assert.equal((await coming).status, 400)
  assert.deepEqual(s.issuer.revoked.splice(2), ['refresh-2', 'access-2'])

  await s.connect({ endUserId: 'ann' })
  s.issuer.revokes = 503
  assert.equal((await s.call('DELETE', '/api/mcp/catalog/files')).status, 204)
  assert.equal(await revoke(), 204, 'also of an entry that is gone')
  const kept = async () => (await s.rows('SELECT state, secret IS NOT NULL AS kept FROM app_connections'))[0]
  assert.deepEqual(await kept(), { state: 'revoked', kept: true })
  s.issuer.revokes = 200
  await s.age(due)
  await s.renew()
  assert.deepEqual([await kept(), s.issuer.revoked.length], [{ state: 'revoked', kept: false }, 4])

  const hold = (held: boolean) =>
    s.database.systemBatch([{ text: `UPDATE tenants SET legal_hold = $1 WHERE id = 'default'`, values: [held] }])
  await hold(true)
  await s.age(due)
  await s.renew()
  assert.equal((await kept())?.['state'], 'revoked', 'its time has come, and a legal hold keeps it')
  await hold(false)
  await s.age(due)
  await s.renew()
  assert.equal(await kept(), undefined)
  // An ended connection stays visible for a time.
  await s.age(due)
  await s.renew()
  assert.equal(await kept(), undefined)
})
