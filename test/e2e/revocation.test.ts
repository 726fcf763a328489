import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { test, type TestContext } from 'node:test'
import pg from 'pg'
import { createTokens } from '../../plugins/auth/tokens/index.ts'
import { all, chat, chatStream, type Frame, resumeStream } from './client.ts'
import { type Agent, type Cluster, eventually, startCluster } from './cluster.ts'

// Whatever a key holds open ends when the key does, in every process. The model says one word and then nothing, so that no
// stream ends by itself.
const silent = { text: 'one two three', hangAfter: 1 }
const pepper = randomBytes(32)

interface Issued {
  readonly id: string
  readonly token: string
}

/** A stream of the conductor, once it has begun. */
async function follow(url: string, token: string) {
  const response = await fetch(url, { headers: { authorization: `Bearer ${token}` } })
  assert.equal(response.status, 200, url)
  let over = false
  // Its end is an end in order: a cut would reject.
  const end = response.text().then((text) => ((over = true), text))
  return { end, over: () => over }
}

const issue = async (cluster: Cluster, body: object = {}): Promise<Issued> =>
  (await cluster.api<Issued>('POST', '/api/api-keys', { label: 'test', role: 'member', ...body })).body

/** A run that never ends, and the streams of it and its session that a key may read. */
async function silentRun(cluster: Cluster, profile: string) {
  cluster.model.next(silent)
  const { body } = await cluster.api<{ runId: string; sessionId: string }>('POST', '/api/runs', {
    profile,
    prompt: 'Hi.',
  })
  await eventually('it speaks', async () => {
    const run = await cluster.api<{ events: { type: string }[] }>('GET', `/api/runs/${body.runId}`)
    return run.body.events.some(({ type }) => type === 'assistant')
  })
  return [`/api/runs/${body.runId}/stream`, `/api/runs/${body.runId}/events`, `/api/sessions/${body.sessionId}/stream`]
}

/** Does something, and waits until all of `streams` are over; how long it took is said beside the test. */
async function endedBy(t: TestContext, what: () => Promise<unknown>, streams: readonly Promise<unknown>[]) {
  const since = performance.now()
  await what()
  await Promise.all(streams)
  t.diagnostic(`over after ${Math.round(performance.now() - since)} ms`)
}

/** Frames of a chat's stream, of which the first has come. */
async function streaming(agent: Agent, cluster: Cluster): Promise<{ frames: Promise<Frame[]>; run: string }> {
  cluster.model.next(silent)
  const stream = await chatStream(agent, { message: 'Hi.' })
  assert.equal(stream.response.status, 200)
  return { frames: all(stream), run: stream.response.headers.get('x-public-run-id')! }
}

const lastOf = (frames: readonly Frame[]) => [frames.at(-1)?.event, frames.at(-1)?.data.code]
const revoked = ['error', 'unauthorized']

test('what a key holds open ends with it, in every process', { timeout: 120_000 }, async (t) => {
  const env = { AGENT_ORC_ADMIN_TENANT: 'default', AGENT_API_KEY_PEPPER: pepper.toString('base64') }
  const cluster = await startCluster(t, 'four', { env, apart: ['conductor', 'gateway'] })
  const second = await cluster.another('conductor', { INTERNAL_PORT: '0', RUNNER_URLS: cluster.runnerUrl })
  const conductors = [cluster.conductorUrl, second.urls['conductor']!]
  const agent = await cluster.agent('silent')
  const paths = await silentRun(cluster, 'silent')
  const followAll = (token: string) =>
    Promise.all(conductors.flatMap((url) => paths.map((path) => follow(url + path, token))))

  await t.test('a key of a tenant, with what it minted; those of other keys go on', async (t) => {
    const parent = await issue(cluster, { role: 'admin' })
    const reply = await fetch(`${conductors[0]}/api/api-keys`, {
      method: 'POST',
      headers: { authorization: `Bearer ${parent.token}`, 'content-type': 'application/json' },
      body: JSON.stringify({ label: 'child' }),
    })
    const child = (await reply.json()) as Issued
    const other = await issue(cluster)
    const [ending, staying] = [await followAll(child.token), await followAll(other.token)]
    const revoke = () => cluster.api('DELETE', `/api/api-keys/${parent.id}`)
    await endedBy(
      t,
      revoke,
      ending.map(({ end }) => end),
    )
    assert.ok(staying.every(({ over }) => !over()))
    await cluster.api('DELETE', `/api/api-keys/${other.id}`)
    await Promise.all(staying.map(({ end }) => end))
  })

  await t.test('a key that expires', async (t) => {
    const { token } = await issue(cluster, { expiresAt: new Date(Date.now() + 3_000).toISOString() })
    const streams = await followAll(token)
    await endedBy(
      t,
      async () => {},
      streams.map(({ end }) => end),
    )
  })

  await t.test('a key of an agent: streams end with an error, a chat that waits with 401', async (t) => {
    const other = (await cluster.api<Issued>('POST', '/api/profiles/silent/keys', { label: 'other' })).body
    const first = await streaming(agent, cluster)
    const resumed = await resumeStream(agent, first.run)
    const staying = await resumeStream({ ...agent, key: other.token }, first.run)
    cluster.model.next(silent)
    const waiting = chat(agent, { message: 'Hi.' })
    const resumedFrames = all(resumed)
    await eventually('the chat is under way', async () => {
      const runs = await cluster.api<unknown[]>('GET', '/api/runs?status=running')
      return runs.body.length >= 3
    })
    const revoke = () => cluster.api('DELETE', `/api/profiles/silent/keys/${agent.keyId}`)
    await endedBy(t, revoke, [first.frames, resumedFrames, waiting])
    for (const frames of [await first.frames, await resumedFrames]) {
      assert.deepEqual(lastOf(frames), revoked)
      assert.equal(frames.at(-1)!.data.public_run_id, first.run)
    }
    const answer = await waiting
    assert.deepEqual([answer.status, answer.body.error], [401, 'unauthorized'])
    // The run goes on, and other keys of the agent read it.
    const { value } = await staying.frames.next()
    assert.equal(value?.event, 'delta')
    const rest = all(staying)
    const unpublish = () => cluster.api('DELETE', '/api/profiles/silent/published')
    await endedBy(t, unpublish, [rest])
    assert.deepEqual(lastOf(await rest), revoked)
  })

  await t.test(
    'an agent that is switched off: a chat that waits hears that, and not that its key is invalid',
    async (t) => {
      const off = await cluster.agent('off')
      cluster.model.next(silent)
      const waiting = chat(off, { message: 'Hi.' })
      await eventually('the chat is under way', async () => {
        const runs = await cluster.api<unknown[]>('GET', '/api/runs?status=running&profile=off')
        return runs.body.length > 0
      })
      await endedBy(t, () => cluster.api('PATCH', '/api/profiles/off/published', { enabled: false }), [waiting])
      const answer = await waiting
      assert.deepEqual([answer.status, answer.body.error], [404, 'not_published'])
    },
  )

  await t.test('a tenant that is deleted', async (t) => {
    assert.equal((await cluster.api('POST', '/api/tenants', { id: 'initech' })).status, 201)
    const token = await firstKey(cluster, 'initech')
    const call = async (path: string, body?: unknown) => {
      const response = await fetch(conductors[0] + path, {
        method: 'POST',
        headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
        body: JSON.stringify(body ?? {}),
      })
      return (await response.json()) as Record<string, string>
    }
    await call('/api/profiles', { name: 'quiet', model: 'openai/stand-in' })
    const { slug } = await call('/api/profiles/quiet/publish')
    const { token: key, id: keyId } = await call('/api/profiles/quiet/keys', { label: 'test' })
    const url = `${cluster.gatewayUrl}/v1/chat/initech/${slug!}`
    const chatting = await streaming({ profile: 'quiet', slug: slug!, url, key: key!, keyId: keyId! }, cluster)
    // A session without a run is open for as long as its reader wants it to be: no end of a run ends its stream.
    const { sessionId } = await call('/api/runs', { profile: 'quiet', prompt: 'Hi.' })
    const following = await Promise.all(
      conductors.map((one) => follow(`${one}/api/sessions/${sessionId!}/stream`, token)),
    )
    const remove = () => cluster.api('DELETE', '/api/tenants/initech')
    await endedBy(t, remove, [chatting.frames, ...following.map(({ end }) => end)])
  })
})

/** The first key of a tenant, as `agent-orc key issue` stores it. */
async function firstKey({ dsn }: Cluster, tenant: string): Promise<string> {
  const tokens = createTokens('dev', pepper)
  const token = tokens.mint()
  const client = new pg.Client(dsn)
  await client.connect()
  await client.query(`SELECT set_config('app.tenant_id', $1, false)`, [tenant])
  await client.query(
    `INSERT INTO tenant_api_keys (tenant_id, id, label, role, key_hash, created_by)
     VALUES ($1, 'tak_first', 'test', 'owner', $2, 'agent-orc key issue')`,
    [tenant, tokens.hash('ao:tenant-key:v1', token)],
  )
  await client.end()
  return token
}
