import assert from 'node:assert/strict'
import { createHash, createHmac, randomBytes } from 'node:crypto'
import { test } from 'node:test'
import { chat } from './client.ts'
import { type Cluster, startCluster } from './cluster.ts'

// The format is written here a second time on purpose: the test speaks it as another implementation would.
interface Signing {
  readonly key: Buffer
  readonly tenant: string
  readonly method: string
  readonly target: string
  readonly body: string
  readonly timestamp: number
  readonly nonce: string
  readonly family: string
  readonly keyId: string
}

function sign(s: Signing): Record<string, string> {
  const bodyHash = createHash('sha256').update(s.body).digest('hex')
  const text = [
    'AO-HMAC-SHA256-V1',
    s.family,
    s.keyId,
    s.timestamp,
    s.nonce,
    s.tenant,
    s.method,
    s.target,
    bodyHash,
  ].join('\n')
  return {
    'x-chat-gateway-signature': `v1,${createHmac('sha256', s.key).update(text).digest('base64')}`,
    'x-chat-gateway-timestamp': String(s.timestamp),
    'x-chat-gateway-nonce': s.nonce,
    'x-chat-gateway-key-id': s.keyId,
    'x-chat-gateway-tenant': s.tenant,
  }
}

const fresh = (cluster: Cluster, body: string, change: Partial<Signing> = {}): Signing => ({
  key: cluster.signingKey,
  tenant: 'default',
  method: 'POST',
  target: '/api/runs',
  body,
  timestamp: Math.floor(Date.now() / 1000),
  nonce: randomBytes(16).toString('base64url'),
  family: 'chat-gateway',
  keyId: 'CURRENT',
  ...change,
})

async function send(
  cluster: Cluster,
  headers: Record<string, string>,
  body: string,
  target = '/api/runs',
): Promise<number> {
  const response = await fetch(cluster.internalUrl + target, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body,
  })
  await response.text()
  return response.status
}

test('the internal plane accepts a correctly signed request once, and nothing forged, replayed or skewed', async (t) => {
  const cluster = await startCluster(t, 'four')
  const agent = await cluster.agent('signed')
  let run = 0
  const task = (): string => JSON.stringify({ id: `signed-${++run}`, profile: agent.profile, prompt: 'hello' })

  const body = task()
  const good = sign(fresh(cluster, body))
  assert.equal(await send(cluster, good, body), 202, 'a correct signature')
  assert.equal(await send(cluster, good, body), 401, 'the same request again')

  const refused: [string, (body: string) => Record<string, string>][] = [
    ['no headers at all', () => ({})],
    ['another key', (b) => sign(fresh(cluster, b, { key: randomBytes(32) }))],
    ['another key family', (b) => sign(fresh(cluster, b, { family: 'vfs' }))],
    ['61 s in the past', (b) => sign(fresh(cluster, b, { timestamp: Math.floor(Date.now() / 1000) - 62 }))],
    ['61 s in the future', (b) => sign(fresh(cluster, b, { timestamp: Math.floor(Date.now() / 1000) + 63 }))],
    ['a signature over another body', () => sign(fresh(cluster, task()))],
    ['a signature over another method', (b) => sign(fresh(cluster, b, { method: 'DELETE' }))],
    ['a signature over another target', (b) => sign(fresh(cluster, b, { target: '/api/runs?x=1' }))],
    ['the tenant exchanged after signing', (b) => ({ ...sign(fresh(cluster, b)), 'x-chat-gateway-tenant': 'acme' })],
    [
      'the nonce exchanged after signing',
      (b) => ({ ...sign(fresh(cluster, b)), 'x-chat-gateway-nonce': randomBytes(16).toString('base64url') }),
    ],
    ['a malformed nonce', (b) => sign(fresh(cluster, b, { nonce: 'short' }))],
    [
      'an unknown signature version',
      (b) => {
        const headers = sign(fresh(cluster, b))
        return { ...headers, 'x-chat-gateway-signature': headers['x-chat-gateway-signature']!.replace('v1,', 'v2,') }
      },
    ],
  ]
  for (const [what, headers] of refused) {
    const attempt = task()
    assert.equal(await send(cluster, headers(attempt), attempt), 401, what)
  }
  const attempt = task()
  assert.equal(await send(cluster, sign(fresh(cluster, attempt)), attempt), 202, 'still accepted after all of that')
})

test('the tenant of a signed request is the signed one, whatever X-Tenant-ID says', async (t) => {
  const cluster = await startCluster(t, 'four')
  const agent = await cluster.agent('only-default')
  const body = JSON.stringify({ id: 'other-tenant', profile: agent.profile, prompt: 'hello' })
  const headers = { ...sign(fresh(cluster, body, { tenant: 'acme' })), 'x-tenant-id': 'default' }
  const response = await fetch(`${cluster.internalUrl}/api/runs`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body,
  })
  assert.equal(response.status, 400)
  assert.equal(((await response.json()) as { error: string }).error, 'unknown_profile: only-default')
})

test('signing keys rotate in the order of the runbook without a failed chat; mismatched keys are 502 upstream', async (t) => {
  const cluster = await startCluster(t, 'four', { apart: ['conductor', 'gateway'] })
  const agent = await cluster.agent('rotating')
  const next = randomBytes(32).toString('base64')
  const old = cluster.signingKey.toString('base64')
  const works = async (when: string): Promise<void> => {
    const reply = await chat(agent, { message: 'hello' })
    assert.equal(reply.status, 200, `${when}: ${JSON.stringify(reply.body)}`)
  }
  const restart = async (role: 'conductor' | 'gateway', env: Record<string, string>): Promise<void> => {
    await cluster.kill(role)
    await cluster.start(role, env)
  }
  await works('before')
  await restart('conductor', { CHAT_GATEWAY_SIGNING_KEY_CURRENT: next, CHAT_GATEWAY_SIGNING_KEY_PREVIOUS: old })
  await works('conductor rotated, gateway not yet')
  await restart('gateway', { CHAT_GATEWAY_SIGNING_KEY_CURRENT: next, CHAT_GATEWAY_SIGNING_KEY_PREVIOUS: old })
  await works('both rotated')
  await restart('conductor', { CHAT_GATEWAY_SIGNING_KEY_CURRENT: next, CHAT_GATEWAY_SIGNING_KEY_PREVIOUS: '' })
  await works('previous removed on the conductor')
  await restart('gateway', { CHAT_GATEWAY_SIGNING_KEY_CURRENT: old, CHAT_GATEWAY_SIGNING_KEY_PREVIOUS: '' })
  const refused = await chat(agent, { message: 'hello' })
  assert.equal(refused.status, 502)
  assert.equal(refused.body.error, 'upstream')
})
