import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { type TestContext, test } from 'node:test'
import { freshDatabase, testRole } from '#testing'
import { startComposio } from './composio.ts'

interface Answer {
  readonly status: number
  readonly body: Record<string, unknown>
}

async function stage(t: TestContext, settings: object = {}) {
  const composio = await startComposio(t)
  const bootstrap = randomBytes(24).toString('hex')
  const kernel = await testRole(
    t,
    'conductor',
    [],
    {
      POSTGRES_DSN: await freshDatabase(t),
      RUNNER_URLS: 'http://127.0.0.1:1',
      AGENT_ORC_MASTER_KEY: randomBytes(32).toString('base64'),
      AGENT_ORC_PUBLIC_URL: 'https://agents.test',
      AGENT_ORC_BOOTSTRAP_KEY: bootstrap,
      AGENT_ORC_BOOTSTRAP: 'always',
      AGENT_ORC_ADMIN_TENANT: 'default',
    },
    {
      settings: {
        'apps-composio': {
          apiKey: 'ak_test',
          baseUrl: composio.url,
          toolkits: { gmail: { tenants: '*', connection: 'user', description: 'Mail' } },
          ...settings,
        },
      },
    },
  )
  const callerWith =
    (token: string | undefined) =>
    async (method: 'GET' | 'POST' | 'DELETE', url: string, body?: unknown): Promise<Answer> => {
      const reply = await kernel.listeners['conductor']!.inject({
        method,
        url,
        headers: {
          ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        },
        ...(body === undefined ? {} : { payload: JSON.stringify(body) }),
      })
      const json = String(reply.headers['content-type']).includes('json')
      return { status: reply.statusCode, body: json ? (JSON.parse(reply.body) as Record<string, unknown>) : {} }
    }
  const call = callerWith(bootstrap)
  const send = (endUserId: string, to = 'bob@test', as = call) =>
    as('POST', '/api/apps/gmail/call', { name: 'GMAIL_SEND_EMAIL', arguments: { to }, endUserId })
  const connect = async (endUserId: string, as = call): Promise<{ link: Answer; back: string; id: string }> => {
    const link = await as('POST', '/api/apps/gmail/connect', { endUserId })
    assert.equal(link.status, 200, JSON.stringify(link.body))
    const asked = composio.asked.findLast(({ path }) => path === '/api/v3/connected_accounts/link')!
    const back = new URL(String(asked.body!['callback_url']))
    return { link, back: back.pathname + back.search, id: `ca_${composio.links}` }
  }
  return {
    composio,
    call,
    send,
    connect,
    browse: (path: string) => callerWith(undefined)('GET', path),
    async other(id: string) {
      const { body } = await call('POST', '/api/tenants', { id, name: id, ownerKey: true })
      return callerWith((body['ownerKey'] as { token: string }).token)
    },
  }
}

test('toolkits of Composio are connected, listed and called as each end user, under the policy of the installation', async (t) => {
  const s = await stage(t)
  const { composio, call } = s
  assert.deepEqual((await call('GET', '/api/apps')).body, [
    { name: 'gmail', description: 'Mail', provider: 'composio', connection: 'user' },
  ])
  assert.deepEqual((await call('GET', '/api/apps/gmail/tools')).body, [
    {
      name: 'GMAIL_FETCH_EMAILS',
      description: 'Does GMAIL_FETCH_EMAILS.',
      inputSchema: { type: 'object', properties: { query: { type: 'string' } } },
    },
    {
      name: 'GMAIL_SEND_EMAIL',
      description: 'Does GMAIL_SEND_EMAIL.',
      inputSchema: {
        type: 'object',
        properties: { to: { type: 'string' }, subject: { type: 'string' } },
        required: ['to'],
      },
    },
  ])
  assert.equal((await s.send('ann')).body['error'], 'app_not_connected')
  const { link, back, id } = await s.connect('ann')
  assert.equal(link.body['url'], 'https://connect.composio.test/link/lk_1')
  const begun = composio.asked.findLast(({ path }) => path.endsWith('/link'))!
  assert.deepEqual(
    [begun.key, begun.body!['auth_config_id'], begun.body!['user_id']],
    ['ak_test', 'ac_on', 'user:default:ann'],
  )
  assert.match(String(begun.body!['callback_url']), /^https:\/\/agents\.test\/api\/apps\/callback\?state=/)
  // What the address says is not what counts.
  assert.equal((await s.browse(`${back}&status=success&connected_account_id=ca_9`)).status, 400)
  const again = await s.connect('ann')
  composio.agree(again.id)
  assert.equal((await s.browse(again.back)).status, 200)
  assert.deepEqual(await s.send('ann'), {
    status: 200,
    body: { ok: true, result: { data: { id: 'm1', to: 'bob@test' }, error: null, successful: true, log_id: 'l' } },
  })
  const failed = await s.send('ann', 'nobody')
  assert.deepEqual([failed.status, failed.body['ok']], [200, false])
  const executed = composio.asked.findLast(({ path }) => path.includes('/execute/'))!
  assert.deepEqual(
    [executed.path, executed.body!['connected_account_id'], executed.body!['user_id']],
    ['/api/v3/tools/execute/GMAIL_SEND_EMAIL', again.id, 'user:default:ann'],
  )
  const unknown = await call('POST', '/api/apps/gmail/call', { name: 'GMAIL_DROP', arguments: {}, endUserId: 'ann' })
  assert.equal(unknown.status, 404)
  // The same person at another tenant is another one.
  const initech = await s.other('initech')
  assert.equal((await s.send('ann', 'x', initech)).body['error'], 'app_not_connected')
  await s.connect('ann', initech)
  assert.equal(composio.asked.at(-1)!.body!['user_id'], 'user:initech:ann')
  assert.notEqual(id, again.id)
})

test('an account that Composio has lost has to be connected again; one that is revoked is revoked there', async (t) => {
  const s = await stage(t)
  const { back, id, link } = await s.connect('ann')
  s.composio.agree(id)
  await s.browse(back)
  assert.equal((await s.send('ann')).status, 200)
  s.composio.accounts.get(id)!.status = 'EXPIRED'
  const lost = await s.send('ann')
  assert.deepEqual([lost.status, lost.body['error'], lost.body['state']], [409, 'app_not_connected', 'expired'])
  const again = await s.connect('ann')
  s.composio.agree(again.id)
  await s.browse(again.back)
  assert.equal(again.link.body['connectionId'], link.body['connectionId'])
  const path = `/api/apps/gmail/connections/${String(link.body['connectionId'])}`
  assert.equal((await s.call('DELETE', path)).status, 204)
  assert.equal(s.composio.accounts.has(again.id), false)
  const seen = s.composio.asked.map(({ method, path: of }) => `${method} ${of}`)
  assert.ok(seen.includes(`POST /api/v3.1/connected_accounts/${again.id}/revoke`))
})

test('an account that is replaced or has ended is deleted at Composio, and what is left goes with its person', async (t) => {
  const s = await stage(t)
  const has = () => [...s.composio.accounts.keys()]
  const connected = async () => {
    const { back, id, link } = await s.connect('ann')
    s.composio.agree(id)
    assert.equal((await s.browse(back)).status, 200)
    return { id, connectionId: link.body['connectionId'] }
  }
  const first = await connected()
  const second = await connected()
  assert.equal(second.connectionId, first.connectionId)
  assert.deepEqual(has(), [second.id], 'the former one is gone')
  assert.equal((await s.send('ann')).status, 200)
  const revoked = s.composio.asked.filter(({ path }) => path.endsWith('/revoke'))
  assert.deepEqual(revoked, [], 'the app may know both as one')
  s.composio.accounts.get(second.id)!.status = 'INACTIVE'
  assert.equal((await s.send('ann')).body['state'], 'failed')
  assert.deepEqual(has(), [])
  // The owner comes back without having agreed.
  await s.browse((await s.connect('ann')).back)
  assert.deepEqual(has(), [])
  // One that could not be revoked while Composio took no key, before its owner wanted it again.
  const third = await connected()
  s.composio.keys = []
  await s.call('DELETE', `/api/apps/gmail/connections/${String(third.connectionId)}`)
  s.composio.keys = ['ak_test']
  const fourth = await connected()
  assert.deepEqual(has(), [fourth.id])
  const erased = await s.call('DELETE', '/api/end-users/ann')
  assert.ok(erased.status < 300, JSON.stringify(erased.body))
  assert.deepEqual(has(), [])
})

test('when Composio is away, or does not take the key, the answer says so, and nothing is asked twice that acts', async (t) => {
  const s = await stage(t)
  const { back, id } = await s.connect('ann')
  s.composio.agree(id)
  await s.browse(back)
  await s.call('GET', '/api/apps/gmail/tools')
  s.composio.down = 503
  const before = s.composio.asked.length
  const away = await s.send('ann')
  assert.deepEqual(
    [away.status, away.body['error'], away.body['message']],
    [502, 'app_unavailable', 'Composio answered 503.'],
  )
  assert.equal(s.composio.asked.length, before + 1)
  s.composio.down = 0
  s.composio.keys = []
  assert.match(String((await s.send('ann')).body['message']), /does not accept the API key/)
})

test('with a key that is a secret each tenant has a project of its own', async (t) => {
  const s = await stage(t, { apiKey: 'secret://composio' })
  assert.match(String((await s.call('GET', '/api/apps/gmail/tools')).body['message']), /composio/)
  s.composio.keys = ['ak_default', 'ak_initech']
  const initech = await s.other('initech')
  await s.call('POST', '/api/secrets', { name: 'composio', value: 'ak_default' })
  await initech('POST', '/api/secrets', { name: 'composio', value: 'ak_initech' })
  for (const [as, key] of [
    [s.call, 'ak_default'],
    [initech, 'ak_initech'],
  ] as const) {
    assert.equal((await as('GET', '/api/apps/gmail/tools')).status, 200)
    assert.equal(s.composio.asked.at(-1)!.key, key)
  }
})
