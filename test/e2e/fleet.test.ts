import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { root } from '../../kernel/config.ts'
import { startFakeE2b } from '../../providers/sandbox-e2b/test/fake/server.ts'
import { startFakeCluster } from '../../providers/sandbox-kubernetes/test/fake/server.ts'
import { type Cluster, eventually, startCluster } from './cluster.ts'
import type { Lease, Run } from './sandbox-roles.ts'

// The whole service with its workers on a remote substrate: here a stand-in that starts the real worker.

const worker = [process.execPath, join(root, 'cli/agent-orc.js'), 'start', '--config', join(root, 'config/worker.yaml')]

interface Substrate {
  readonly env: Record<string, string>
  /** Laid over its entry in the role file. */
  readonly settings?: string
  /** Counts its sandboxes. */
  readonly count: () => number
}

async function startWith(t: TestContext, provider: string, { env, settings = '' }: Substrate): Promise<Cluster> {
  const dir = await mkdtemp(join(tmpdir(), 'ao-e2e-'))
  const file = join(dir, 'dev.yaml')
  const use = `    use: providers/sandbox-${provider}\n`
  const text = await readFile(join(root, 'config/dev.yaml'), 'utf8')
  assert.ok(text.includes(use))
  await writeFile(file, text.replace(use, use + settings))
  const variables = {
    AGENT_ORC_WORKER_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64'),
    AGENT_ORC_SANDBOX_PROVIDERS: provider,
    AGENT_ORC_SANDBOX_IDLE_PAUSE: '1s',
    ...env,
  }
  const cluster = await startCluster(t, 'single', { env: variables, files: { dev: file } })
  t.after(() => rm(dir, { recursive: true, force: true }))
  const profile = { name: 'coder', model: 'openai/stand-in', workerMode: 'sandbox' }
  assert.equal((await cluster.api('POST', '/api/profiles', profile)).status, 201)
  return cluster
}

async function say(cluster: Cluster, prompt: string, sessionId?: string) {
  cluster.model.next({ text: 'Marmalade.' })
  const task = { profile: 'coder', prompt, ...(sessionId === undefined ? {} : { sessionId }) }
  const accepted = await eventually('a runner takes it', async () => {
    const { status, body } = await cluster.api<Run>('POST', '/api/runs', task)
    return status === 202 && body
  })
  const run = await eventually('the run is over', async () => {
    const { body } = await cluster.api<Run>('GET', `/api/runs/${accepted.runId}`)
    return body.status !== 'running' && body
  })
  assert.equal(run.result, 'Marmalade.', `${JSON.stringify(run)}\n${cluster.output()}`)
  const told = cluster.model.requests.at(-1)!.body.messages.map(({ content }) => String(content))
  return { sessionId: run.sessionId, start: run.events.find(({ stage }) => stage === 'sandbox')?.['start'], told }
}

const leaseOf = async (cluster: Cluster, sessionId: string): Promise<Lease> =>
  (await cluster.api<Lease>('GET', `/api/sessions/${sessionId}/worker`)).body

const onE2b = async (t: TestContext) => {
  const fake = await startFakeE2b(t)
  const env = {
    E2B_API_KEY: fake.apiKey,
    E2B_API_URL: fake.url,
    E2B_SANDBOX_URL: fake.url,
    E2B_WEBHOOK_SECRET: 'webhook-secret',
    AGENT_ORC_E2B_TEMPLATE: 'agent-orc-worker',
  }
  return { fake, env, settings: `    command: exec ${worker.join(' ')}\n`, count: () => fake.sandboxes.size }
}

const substrates: Readonly<Record<string, (t: TestContext) => Promise<Substrate>>> = {
  e2b: onE2b,
  async kubernetes(t) {
    const fake = await startFakeCluster(t, { images: { 'agent-orc-worker:1': worker } })
    const dir = await mkdtemp(join(tmpdir(), 'ao-e2e-'))
    t.after(() => rm(dir, { recursive: true }))
    const tokenFile = join(dir, 'token')
    await writeFile(tokenFile, fake.token)
    const env = {
      AGENT_ORC_KUBERNETES_NAMESPACE: 'agents',
      AGENT_ORC_KUBERNETES_API: fake.url,
      AGENT_ORC_KUBERNETES_TOKEN_FILE: tokenFile,
      AGENT_ORC_KUBERNETES_IMAGE: 'agent-orc-worker:1',
    }
    return { env, count: () => fake.sandboxes.size }
  },
}

for (const [provider, start] of Object.entries(substrates)) {
  test(`${provider}: a session runs there, sleeps when it is idle, goes on with its conversation, and leaves nothing`, async (t) => {
    const substrate = await start(t)
    const cluster = await startWith(t, provider, substrate)
    const first = await say(cluster, 'I am Marmalade.')
    assert.equal(first.start, 'launched')
    const { sessionId } = first
    await eventually('it sleeps', async () => (await leaseOf(cluster, sessionId)).state === 'paused')
    const again = await say(cluster, 'Who am I?', sessionId)
    assert.equal(again.start, 'resumed')
    assert.ok(again.told.some((content) => content.includes('I am Marmalade.')))
    assert.equal(substrate.count(), 1)
    assert.equal((await cluster.api('DELETE', `/api/sessions/${sessionId}`)).status, 204)
    await eventually('it is gone', async () => substrate.count() === 0)
  })
}

test('e2b: a sandbox that somebody else ended is known to be gone by its event, and the next run has another one', async (t) => {
  const substrate = await onE2b(t)
  const cluster = await startWith(t, 'e2b', {
    ...substrate,
    env: { ...substrate.env, AGENT_ORC_SANDBOX_IDLE_PAUSE: '5m' },
  })
  const { sessionId } = await say(cluster, 'I am Marmalade.')
  const { sandboxId, state } = await leaseOf(cluster, sessionId)
  assert.equal(state, 'running')
  await substrate.fake.end(sandboxId)
  const body = JSON.stringify({ version: 'v1', id: 'e1', type: 'sandbox.lifecycle.killed', sandboxId })
  const signed = createHash('sha256').update(`webhook-secret${body}`).digest('base64url')
  const deliver = (signature: string) =>
    fetch(`${cluster.conductorUrl}/api/sandbox-events/e2b`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'e2b-signature': signature },
      body,
    })
  assert.equal((await deliver('x')).status, 401)
  const taken = await deliver(signed)
  assert.equal(taken.status, 202)
  assert.deepEqual(await taken.json(), { queued: 1 })
  await eventually('it is gone', async () => (await leaseOf(cluster, sessionId)).state === 'gone')
  const again = await say(cluster, 'Who am I?', sessionId)
  assert.equal(again.start, 'launched')
  assert.ok(again.told.some((content) => content.includes('I am Marmalade.')))
})
