import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import { Webhook } from 'standardwebhooks'
import { definePlugin } from '#kernel'
import { Database } from '#contracts/database'
import { testRole } from '#testing'
import { startReceiver } from './support.ts'

const signingSecret = (): string => `whsec_${randomBytes(32).toString('base64')}`

/** The conductor as an operator runs it, with a receiver. */
async function conductor(t: TestContext, variables: Record<string, string> = {}) {
  const receiver = await startReceiver(t)
  const parts: { database: Database }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database },
    setup: async ({ deps }) => (parts.push(deps), {}),
  })
  const bootstrap = randomBytes(24).toString('hex')
  const kernel = await testRole(t, 'conductor', [probe], {
    RUNNER_URLS: 'http://127.0.0.1:1',
    AGENT_ORC_BOOTSTRAP_KEY: bootstrap,
    AGENT_ORC_WEBHOOK_KEY: randomBytes(32).toString('base64'),
    AGENT_ORC_WEBHOOK_ALLOW_HOSTS: receiver.allowed,
    ...variables,
  })
  const { database } = parts[0]!
  const api = async (method: 'GET' | 'POST' | 'PUT' | 'DELETE', url: string, body?: object) => {
    const reply = await kernel.listeners['conductor']!.inject({
      method,
      url,
      headers: { authorization: `Bearer ${bootstrap}` },
      ...(body ? { body } : {}),
    })
    return { status: reply.statusCode, body: reply.body === '' ? {} : reply.json<Record<string, string>>() }
  }
  let runs = 0
  return {
    database,
    receiver,
    api,
    /** Ends a run of the receiver's. */
    async end(): Promise<string> {
      const id = `run${++runs}`
      await database.batch('default', [
        {
          text: `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, webhook_url)
                 VALUES ('default', $1, 's1', 'writer', 'running', 'x', 'me', 1, $2)`,
          values: [id, receiver.url],
        },
        { text: `UPDATE runs SET status = 'ok', finished_at = now() WHERE id = $1`, values: [id] },
      ])
      return id
    },
  }
}

test('messages are signed with the secret that a tenant names, as it is when they leave', async (t) => {
  const { api, end, receiver, database } = await conductor(t)
  const derived = (await api('GET', '/api/webhooks/secret')).body['secret']!
  const [first, second] = [signingSecret(), signingSecret()]
  await api('POST', '/api/secrets', { name: 'hooks', value: first })
  const named = await api('PUT', '/api/webhooks/secret', { secret: 'secret://hooks' })
  assert.deepEqual([named.status, named.body['secret'], named.body['version']], [200, 'secret://hooks', 2])
  assert.equal((await api('GET', '/api/webhooks/secret')).body['secret'], 'secret://hooks')

  const verifiedBy = async (...secrets: string[]): Promise<boolean[]> => {
    const count = receiver.posts.length
    await end()
    await receiver.received(count + 1)
    const { body, headers } = receiver.posts[count]!
    return secrets.map((secret) => {
      try {
        new Webhook(secret).verify(body, headers as Record<string, string>)
        return true
      } catch {
        return false
      }
    })
  }
  // For a day, what was replaced signs as well: the derived secret, and the value before.
  assert.deepEqual(await verifiedBy(first, derived, second), [true, true, false])
  await api('PUT', '/api/secrets/hooks', { value: second })
  assert.deepEqual(await verifiedBy(first, derived, second), [true, true, true])
  await database.batch('default', [
    { text: `UPDATE webhook_secrets SET rotated_at = now() - interval '25 hours'` },
    { text: `UPDATE secrets SET updated_at = now() - interval '25 hours'` },
    { text: `SELECT pg_notify('secrets', 'default/hooks')` },
  ])
  const made = (await api('POST', '/api/webhooks/secret/rotate')).body['secret']!
  assert.match(made, /^whsec_/)
  assert.deepEqual(await verifiedBy(made, second, derived), [true, true, false])
  // A secret that is gone keeps no message from leaving with the new one.
  await api('DELETE', '/api/secrets/hooks')
  assert.deepEqual(await verifiedBy(made, second), [true, false])

  const [dump] = await database.batch<[object[]]>('default', [
    { text: `SELECT w::text || d::text AS row FROM webhook_secrets w, webhook_deliveries d` },
  ])
  for (const secret of [first, second]) assert.ok(!JSON.stringify(dump).includes(secret.slice('whsec_'.length)))
})

test('a secret that cannot sign is refused when it is named, and what goes wrong later is said of the message', async (t) => {
  const { api, end, receiver } = await conductor(t)
  await api('POST', '/api/secrets', { name: 'short', value: 'canary-value' })
  for (const [secret, status, error] of [
    ['hooks', 400, 'invalid_ref'],
    ['secret://${HOOKS}', 400, 'invalid_ref'],
    ['secret://hooks', 400, 'unknown_secret: hooks'],
    ['secret://short', 422, 'secret_unfit'],
  ] as const) {
    const refused = await api('PUT', '/api/webhooks/secret', { secret })
    assert.deepEqual([refused.status, refused.body['error']], [status, error], secret)
    assert.doesNotMatch(JSON.stringify(refused), /canary-value/)
  }
  await api('POST', '/api/secrets', { name: 'hooks', value: signingSecret() })
  await api('PUT', '/api/webhooks/secret', { secret: 'secret://hooks' })
  await api('DELETE', '/api/secrets/hooks')
  const runId = await end()
  for (;;) {
    const [one] = (await api('GET', `/api/webhooks/deliveries?runId=${runId}`)).body as unknown as Record<
      string,
      string
    >[]
    if (!one?.['lastError']) continue
    assert.deepEqual([one['state'], one['lastStatus']], ['pending', null])
    assert.match(one['lastError'], /no secret 'hooks'/)
    break
  }
  assert.deepEqual(receiver.posts, [])
})

test('without secrets a tenant signs with none of its own', async (t) => {
  const { api } = await conductor(t, { AGENT_ORC_MASTER_KEY: '' })
  const refused = await api('PUT', '/api/webhooks/secret', { secret: 'secret://hooks' })
  assert.deepEqual([refused.status, refused.body['error']], [503, 'secrets_unavailable'])
})
