import assert from 'node:assert/strict'
import { test } from 'node:test'
import pg from 'pg'
import { startBalancer } from '../chaos/balancer.ts'
import { chat, chatStream } from './client.ts'
import { type Cluster, eventually, quickLeases, startCluster } from './cluster.ts'
import { endInOrder } from './roles.ts'

const words = Array.from({ length: 60 }, (_, i) => `word${i}`).join(' ')
/** About three seconds of text. */
const slow = { text: words, delayMs: 50 }

interface Run {
  readonly status: string
  readonly attempt: number
  readonly result?: string
  readonly error?: { readonly code: string }
  readonly events: readonly { readonly seq: number; readonly type: string; readonly stage?: string; text?: string }[]
}

const runOf = async (cluster: Cluster, url: string, id: string): Promise<Run> => {
  const { bootstrap } = cluster
  const response = await fetch(`${url}/api/runs/${id}`, { headers: { authorization: `Bearer ${bootstrap}` } })
  return (await response.json()) as Run
}

/** One run whole: every word once, in order, in one attempt. */
function assertWhole(run: Run, story: string): void {
  assert.deepEqual([run.status, run.result, run.attempt], ['ok', words, 1], story)
  assert.deepEqual(
    run.events.map(({ seq }) => seq),
    run.events.map((_, i) => i + 1),
    story,
  )
  const said = run.events.flatMap(({ type, text }) => (type === 'assistant' ? [text] : [])).join('')
  assert.equal(said, words, story)
  assert.equal(run.events.filter(({ stage }) => stage === 'retrying').length, 0, story)
}

/** A second conductor on the same runner, and a run under way on the first one. */
async function underWay(cluster: Cluster, name: string, onCrash?: 'interrupt' | 'resume') {
  await cluster.agent(name, onCrash ? { onCrash } : {})
  cluster.model.next(slow)
  const started = await cluster.api<{ runId: string }>('POST', '/api/runs', { profile: name, prompt: 'Go on.' })
  assert.equal(started.status, 202)
  const { runId } = started.body
  await eventually('it speaks', async () => {
    const run = await runOf(cluster, cluster.conductorUrl, runId)
    return run.events.some(({ type }) => type === 'assistant')
  })
  return runId
}

const ended = (cluster: Cluster, url: string, id: string): Promise<unknown> =>
  eventually('the run is over', async () => (await runOf(cluster, url, id)).status !== 'running')

test('runs outlive their conductors', async (t) => {
  const cluster = await startCluster(t, 'four', { files: await quickLeases(t), apart: ['conductor'] })
  const second = await cluster.another('conductor', { INTERNAL_PORT: '0', RUNNER_URLS: cluster.runnerUrl })
  const there = second.urls['conductor']!

  await t.test('a conductor that stops hands its runs over, and a reader elsewhere misses nothing', async () => {
    const id = await underWay(cluster, 'handed')
    const response = await fetch(`${there}/api/runs/${id}/events`, {
      headers: { authorization: `Bearer ${cluster.bootstrap}` },
    })
    const reading = response.text()
    const { code, ms } = await cluster.stop('conductor')
    assert.equal(code, 0)
    assert.ok(ms < 20_000, 'it waited for nobody')
    await ended(cluster, there, id)
    assertWhole(await runOf(cluster, there, id), cluster.output())
    const lines = (await reading).trimEnd().split('\n')
    assert.equal(lines.length, (await runOf(cluster, there, id)).events.length)
    await cluster.start('conductor')
  })

  await t.test(
    'killed under a profile that says resume, the run goes on with the other conductor, in one attempt',
    async () => {
      const id = await underWay(cluster, 'resumed', 'resume')
      await cluster.kill('conductor')
      await ended(cluster, there, id)
      assertWhole(await runOf(cluster, there, id), cluster.output())
    },
  )

  await t.test('killed under any other profile, it ends as interrupted', async () => {
    await cluster.start('conductor')
    const id = await underWay(cluster, 'interrupted')
    await cluster.kill('conductor')
    await ended(cluster, there, id)
    const run = await runOf(cluster, there, id)
    assert.deepEqual([run.status, run.error?.code, run.attempt], ['interrupted', 'interrupted', 1])
    await cluster.start('conductor')
  })

  await t.test('alone, a conductor lets its runs end before it stops', async () => {
    await endInOrder(second)
    const id = await underWay(cluster, 'alone')
    const { code } = await cluster.stop('conductor')
    assert.equal(code, 0)
    await cluster.start('conductor')
    assertWhole(await runOf(cluster, cluster.conductorUrl, id), cluster.output())
  })

  await t.test('alone and killed, a restarted conductor goes on with what says resume', async () => {
    const id = await underWay(cluster, 'restarted', 'resume')
    await cluster.kill('conductor')
    await cluster.start('conductor')
    await ended(cluster, cluster.conductorUrl, id)
    assertWhole(await runOf(cluster, cluster.conductorUrl, id), cluster.output())
  })
})

test('while a conductor drains for long, the chats of its gateways go to another one behind the same address', async (t) => {
  const cluster = await startCluster(t, 'four', {
    env: { LOG_LEVEL: 'info', LOG_REQUESTS: 'true' },
    apart: ['conductor'],
  })
  const second = await cluster.another('conductor', { INTERNAL_PORT: '0', RUNNER_URLS: cluster.runnerUrl })
  const portOf = (url: string | undefined): number => Number(new URL(url!).port)
  const first = portOf(cluster.internalUrl)
  let ready = first
  const balancer = await startBalancer([first, portOf(second.urls['internal'])], (port) => port === ready)
  t.after(() => balancer.stop())
  const gateway = await cluster.another('gateway', { CONDUCTOR_INTERNAL_URL: balancer.url })
  const there = await cluster.agent('writer')
  const agent = { ...there, url: there.url.replace(cluster.gatewayUrl, gateway.urls['gateway']!) }
  await eventually('the gateway has a link', async () => {
    assert.equal((await chat(agent, { message: 'Hello.' })).status, 200)
    return cluster.output().includes('"link":true')
  })
  cluster.model.next({ text: words, hangAfter: 3 })
  const held = await chatStream(agent, { message: 'Go on.' })
  const delta = await held.frames.next()
  assert.equal(delta.value?.event, 'delta')

  // The conductor that stops sees no other one, so its drain lasts as long as its run.
  const database = new pg.Client({ connectionString: cluster.dsn })
  await database.connect()
  await database.query('UPDATE instances SET stopping = true')
  await database.end()
  const stopped = cluster.stop('conductor')
  await eventually('it drains', async () => (await fetch(`${cluster.conductorUrl}/readyz`)).status === 503)
  ready = portOf(second.urls['internal'])
  const chats = await Promise.all(Array.from({ length: 8 }, () => chat(agent, { message: 'Hello.' })))
  assert.deepEqual(new Set(chats.map(({ status }) => status)), new Set([200]), cluster.output())

  // A run that began there is streamed from there to its end.
  const headers = { authorization: `Bearer ${cluster.bootstrap}` }
  const running = await fetch(`${cluster.conductorUrl}/api/runs?status=running`, { headers })
  assert.equal(running.headers.get('connection'), 'close')
  const [run, ...others] = (await running.json()) as { runId: string }[]
  assert.ok(run && others.length === 0)
  const cancelled = await fetch(`${second.urls['conductor']}/api/runs/${run.runId}`, { method: 'DELETE', headers })
  assert.equal(cancelled.status, 204)
  const rest: string[] = []
  for await (const { event } of held.frames) rest.push(event)
  assert.equal(rest.at(-1), 'error')
  assert.equal((await stopped).code, 0)
})

test('a start that nobody can execute burns nothing, and a conversation whose session is gone remembers', async (t) => {
  const cluster = await startCluster(t, 'four', { apart: ['runner', 'sidecar'] })
  const agent = await cluster.agent('writer')

  await t.test(
    'without a runner a start leaves no run, no session, no chat; with one the same id is a run',
    async () => {
      await cluster.kill('runner')
      const task = { id: 'mine', profile: 'writer', prompt: 'Hello.' }
      const refused = await cluster.api<{ error: string }>('POST', '/api/runs', task)
      assert.equal(refused.status, 503, JSON.stringify(refused.body))
      assert.equal((await cluster.api('GET', '/api/runs/mine')).status, 404)
      assert.deepEqual((await cluster.api<unknown[]>('GET', '/api/sessions')).body, [])
      await cluster.start('runner')
      await eventually('it is there', async () => (await cluster.api('POST', '/api/runs', task)).status === 202)
      await ended(cluster, cluster.conductorUrl, 'mine')
      assert.equal((await runOf(cluster, cluster.conductorUrl, 'mine')).status, 'ok')
      assert.equal((await cluster.api('POST', '/api/runs', task)).status, 202, 'the same id is the same run')
      assert.equal((await cluster.api<unknown[]>('GET', '/api/runs')).body.length, 1)
    },
  )

  await t.test('a turn after the session was shut down is asked with what was said before', async () => {
    cluster.model.next({ text: 'Your name is Ada.' })
    const first = await chat(agent, { message: 'My name is Ada.' })
    assert.equal(first.status, 200)
    const { conversation_id } = first.body
    const sessions = (await cluster.api<{ id: string; lastPrompt: string }[]>('GET', '/api/sessions')).body
    const { id } = sessions.find(({ lastPrompt }) => lastPrompt === 'My name is Ada.')!
    assert.equal((await cluster.api('DELETE', `/api/sessions/${id}`)).status, 204)
    for (const message of ['What is my name?', 'And now?']) {
      const next = await chat(agent, { message, conversation_id })
      assert.equal(next.status, 200, JSON.stringify(next.body) + cluster.output())
      const asked = JSON.stringify(cluster.model.requests.at(-1)!.body.messages)
      assert.ok(
        asked.includes('My name is Ada.') && asked.includes('Your name is Ada.') && asked.includes(message),
        asked,
      )
    }
  })

  await t.test('a sidecar killed right behind an answer has lost nothing of the conversation', async () => {
    cluster.model.next({ text: 'Noted: seven.' })
    const first = await chat(agent, { message: 'Remember seven.' })
    await cluster.kill('sidecar')
    await cluster.start('sidecar')
    const next = await chat(agent, { message: 'What was it?', conversation_id: first.body['conversation_id'] })
    assert.equal(next.status, 200, JSON.stringify(next.body) + cluster.output())
    const asked = JSON.stringify(cluster.model.requests.at(-1)!.body.messages)
    assert.ok(asked.includes('Remember seven.') && asked.includes('Noted: seven.'), asked)
  })
})
