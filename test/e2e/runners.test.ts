import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { createSigner } from '../../plugins/auth/signing/signer.ts'
import { chat } from './client.ts'
import { type Agent, type Cluster, eventually, forms, type Part, startCluster } from './cluster.ts'
import { endInOrder, processOf } from './roles.ts'

interface Entry {
  readonly hash: string
  readonly state: string
  readonly healthy: boolean
  readonly activeSessions: number | null
  readonly process: object | null
}

/** The fleet by hash, as tenants see it. */
async function fleet(cluster: Cluster): Promise<Map<string, Entry>> {
  const { body } = await cluster.api<Entry[]>('GET', '/api/topology')
  return new Map(body.map((entry) => [entry.hash, entry]))
}

/** Calls the signed plane as an operator does. */
async function membership<T>(cluster: Cluster, what: string, body?: object): Promise<{ status: number; body: T }> {
  const target = `/internal/topology/${what}`
  const text = body === undefined ? '' : JSON.stringify(body)
  const signer = createSigner({
    family: 'chat-gateway',
    current: cluster.signingKey,
    kv: { backend: 'memory' } as never,
    onRefused() {},
  })
  const headers = signer.sign({ tenant: 'default', method: 'POST', target, body: Buffer.from(text) })
  const reply = await fetch(cluster.internalUrl + target, {
    method: 'POST',
    headers: { ...headers, ...(text === '' ? {} : { 'content-type': 'application/json' }) },
    ...(text === '' ? {} : { body: text }),
  })
  return { status: reply.status, body: (await reply.json()) as T }
}

/** Has one turn of a conversation; returns the answer, and what the model was told. */
async function say(cluster: Cluster, agent: Agent, message: string, reply: string, conversation?: unknown) {
  cluster.model.next({ text: reply })
  const answer = await chat(agent, {
    message,
    ...(conversation === undefined ? {} : { conversation_id: conversation }),
  })
  assert.equal(answer.status, 200, `${JSON.stringify(answer.body)}\n${cluster.output()}`)
  assert.equal(answer.body.message, reply)
  const told = cluster.model.requests.at(-1)!.body.messages.map(({ content }) => String(content))
  return { conversation: answer.body.conversation_id, told }
}

const quick = { RUNNER_PROBE_INTERVAL: '200ms', AGENT_ORC_RATELIMIT_TOPOLOGY_RPM: '10000' }

/** A cluster with two runners, each with a sidecar of its own; the second one joins while everything runs. */
async function twoRunners(t: TestContext, apart: readonly Part[]) {
  const cluster = await startCluster(t, 'four', { env: quick, apart })
  const sidecar = await cluster.another('sidecar')
  const runner = await cluster.another('runner', { SIDECAR_URL: sidecar.urls.sidecar! })
  const [first] = [...(await fleet(cluster)).keys()]
  const added = await membership<{ runners: { hash: string; state: string; added: boolean }[] }>(cluster, 'reconcile', {
    urls: [runner.urls.runner!],
  })
  assert.equal(added.status, 200, JSON.stringify(added.body))
  const { hash: second, ...how } = added.body.runners[0]!
  assert.equal(how.state, 'live')
  assert.equal(how.added, true)
  /** The runner that a session began on, and the other one. */
  const sidesOf = async (): Promise<{ own: string; other: string }> => {
    const { body } = await cluster.api<{ id: string }[]>('GET', '/api/sessions')
    const own = body[0]!.id.slice(5, 13)
    assert.ok(own === first || own === second)
    return { own, other: own === first ? second : first! }
  }
  const signal = (hash: string, name: NodeJS.Signals): void => {
    process.kill(hash === first ? cluster.pid('runner') : processOf(runner).pid!, name)
  }
  const killRunner = async (hash: string): Promise<void> => {
    const ended = hash === second ? [runner.end(), sidecar.end()] : [cluster.kill('runner'), cluster.kill('sidecar')]
    await Promise.all(ended)
  }
  return { cluster, first: first!, second, sidesOf, killRunner, signal, runner }
}

test('kill -9 of a runner and its sidecar: the next turn of an idle conversation is answered by the other runner, knowing all', async (t) => {
  const { cluster, sidesOf, killRunner } = await twoRunners(t, ['runner', 'sidecar'])
  const agent = await cluster.agent('mover')
  const { conversation } = await say(cluster, agent, 'my name is Ada', 'Hello Ada.')
  const { own, other } = await sidesOf()
  await killRunner(own)
  // At once, because it must not matter whether the conductor has noticed yet.
  const { told } = await say(cluster, agent, 'I live in Turin', 'Noted.', conversation)
  assert.ok(told.includes('my name is Ada') && told.includes('Hello Ada.'), JSON.stringify(told))
  // Each runner is read at its own time, so the other's reading may be older than the move of the session.
  const seen = await eventually('the loss and the move show', async () => {
    const entries = await fleet(cluster)
    return entries.get(own)!.state === 'unreachable' && entries.get(other)!.activeSessions === 1 && entries
  })
  assert.deepEqual([seen.get(own)!.healthy, seen.get(own)!.process, seen.get(own)!.activeSessions], [false, null, null])
  const last = await say(cluster, agent, 'who am I?', 'Ada of Turin.', conversation)
  for (const text of ['my name is Ada', 'I live in Turin', 'Noted.']) assert.ok(last.told.includes(text), text)
})

test('a runner that was frozen comes back with an old copy of a conversation, and the conversation goes on with everything', async (t) => {
  const { cluster, sidesOf, killRunner, signal } = await twoRunners(t, ['runner', 'sidecar'])
  const agent = await cluster.agent('sleeper')
  const { conversation } = await say(cluster, agent, 'my name is Ada', 'Hello Ada.')
  const { own, other } = await sidesOf()
  signal(own, 'SIGSTOP')
  const state = (hash: string, wanted: string) =>
    eventually(`${hash} is ${wanted}`, async () => (await fleet(cluster)).get(hash)!.state === wanted)
  await state(own, 'unreachable')
  await say(cluster, agent, 'I live in Turin', 'Noted.', conversation)
  signal(own, 'SIGCONT')
  await state(own, 'live')
  // It goes on where its newest conversation is, although its own runner is back...
  const third = await say(cluster, agent, 'I like chess', 'Good.', conversation)
  assert.ok(third.told.includes('I live in Turin'))
  // ...and when that is lost, its own runner is not asked for what it remembers.
  await killRunner(other)
  const { told } = await say(cluster, agent, 'who am I?', 'Ada.', conversation)
  for (const text of ['my name is Ada', 'I live in Turin', 'Noted.', 'I like chess', 'Good.']) {
    assert.equal(told.filter((line) => line === text).length, 1, `${text}: ${JSON.stringify(told)}`)
  }
})

test('an operator drains a runner and removes it: nothing new is placed there, and its conversations go on', async (t) => {
  const { cluster, sidesOf, runner, second } = await twoRunners(t, [])
  const agent = await cluster.agent('worker')
  const { conversation } = await say(cluster, agent, 'my name is Ada', 'Hello Ada.')
  const { own, other } = await sidesOf()
  assert.equal((await membership(cluster, 'drain', { hash: own })).status, 200)
  assert.equal((await fleet(cluster)).get(own)!.state, 'draining')
  for (let i = 0; i < 3; i++) await say(cluster, agent, `new ${i}`, 'ok')
  const sessions = await cluster.api<{ id: string }[]>('GET', '/api/sessions')
  assert.equal(sessions.body.filter(({ id }) => id.startsWith(`sess-${own}-`)).length, 1)
  const still = await say(cluster, agent, 'who am I?', 'Ada.', conversation)
  assert.ok(still.told.includes('my name is Ada'))
  assert.equal((await membership(cluster, 'undrain', { hash: own })).status, 200)
  const removed = await membership<{ unroutableSessions: number }>(cluster, 'remove', { hash: own })
  assert.equal(removed.body.unroutableSessions, 1)
  assert.deepEqual([...(await fleet(cluster)).keys()], [other])
  assert.equal((await membership(cluster, 'remove', { hash: own })).status, 404)
  const moved = await say(cluster, agent, 'and now?', 'Still Ada.', conversation)
  assert.ok(moved.told.includes('my name is Ada') && moved.told.includes('who am I?'))
  // RUNNER_URLS names the first runner only.
  const again = await membership<{ runners: object[] }>(
    cluster,
    'reconcile',
    own === second ? { urls: [runner.urls.runner!] } : undefined,
  )
  assert.equal(again.status, 200)
  assert.equal((await fleet(cluster)).get(own)?.state, 'live')
})

for (const form of forms) {
  test(`${form}: SIGTERM right after a turn loses nothing: a fresh runner and a fresh sidecar know it`, async (t) => {
    const cluster = await startCluster(t, form, { apart: ['runner', 'sidecar'] })
    const agent = await cluster.agent('leaver')
    const { conversation } = await say(cluster, agent, 'my name is Ada', 'Hello Ada.')
    // All at once, as when a machine is stopped.
    const roles = form === 'single' ? (['runner'] as const) : (['runner', 'sidecar'] as const)
    const left = await Promise.all(roles.map((role) => cluster.stop(role)))
    for (const { code } of left) assert.equal(code, 0, cluster.output())
    for (const role of roles.toReversed()) await cluster.start(role)
    const next = { ...agent, url: agent.url.replace(/^http:\/\/[^/]+/, cluster.gatewayUrl) }
    const told = await eventually('the conversation goes on', async () => {
      cluster.model.next({ text: 'Ada.' })
      const reply = await chat(next, { message: 'who am I?', conversation_id: conversation })
      return reply.status === 200 && cluster.model.requests.at(-1)!.body.messages.map(({ content }) => String(content))
    })
    assert.ok(told.includes('my name is Ada') && told.includes('Hello Ada.'), JSON.stringify(told))
  })
}

test('SIGTERM in mid-run: the run ends in order, its conversation is stored, and the other runner takes the next turn', async (t) => {
  const { cluster, sidesOf, runner, second } = await twoRunners(t, ['runner'])
  const agent = await cluster.agent('finisher')
  const words = Array.from({ length: 20 }, (_, i) => `w${i}`).join(' ')
  cluster.model.next({ text: words, deltas: 20, delayMs: 50 })
  const running = chat(agent, { message: 'my name is Ada' })
  await eventually('the run is under way', async () => cluster.model.requests.length > 0)
  const { own } = await sidesOf()
  const stopped = own === second ? endInOrder(runner) : cluster.stop('runner')
  const answer = await running
  assert.deepEqual([answer.status, answer.body.message], [200, words])
  // While it drains and after it has gone, no turn fails.
  for (let i = 0; i < 5; i++) {
    const { told } = await say(cluster, agent, `turn ${i}`, `answer ${i}`, answer.body.conversation_id)
    assert.ok(told.includes('my name is Ada') && told.includes(words), JSON.stringify(told))
    for (let j = 0; j < i; j++) assert.ok(told.includes(`answer ${j}`), `turn ${i} knows ${j}`)
  }
  await stopped
  const { told } = await say(cluster, agent, 'who am I?', 'Ada.', answer.body.conversation_id)
  for (let j = 0; j < 5; j++) assert.ok(told.includes(`answer ${j}`), JSON.stringify(told))
})
