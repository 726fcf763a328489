import assert from 'node:assert/strict'
import { test } from 'node:test'
import { decodeSessionStatus, tenantHeader } from '#contracts/wire/runner'
import { all, chat, chatStream, get, resumeStream, terminals, text } from './client.ts'
import { type Agent, type Cluster, eventually, forms, parts, startCluster } from './cluster.ts'

for (const form of forms) {
  test(`${form}: what fails ends once: model errors, cancel, timeouts`, async (t) => {
    const cluster = await startCluster(t, form)
    const lastRequest = () => cluster.model.requests.at(-1)!
    /** The newest run's status, and what conductor and runner say of its session once they agree. */
    const agreed = () =>
      eventually('conductor and runner have one word for the session', async () => {
        const [run] = (await cluster.api<{ status: string; sessionId: string }[]>('GET', '/api/runs')).body
        const { sessionId, status } = run!
        const stored = (await cluster.api<{ status: string }>('GET', `/api/sessions/${sessionId}`)).body.status
        const url = `${cluster.runnerUrl}/runner/sessions/${sessionId}`
        const held = (await (await fetch(url, { headers: { [tenantHeader]: 'default' } })).json()) as { status: number }
        return stored === decodeSessionStatus(held.status) && stored !== 'running' ? [status, stored] : undefined
      })
    await t.test(
      'a model that fails before, during or inside the stream ends in exactly one error, code upstream',
      async () => {
        const agent = await cluster.agent('unlucky')
        const cases = [
          ['refuses the request', { status: 400 }],
          ['drops the connection mid-stream', { text: 'a b c d e f', resetAfter: 3 }],
          ['reports an error in the stream', { text: 'a b c', inBandError: 'overloaded' }],
        ] as const
        for (const [what, reply] of cases) {
          cluster.model.next(reply)
          const frames = await all(await chatStream(agent, { message: what }))
          assert.equal(terminals(frames).length, 1, what)
          const last = frames.at(-1)!
          assert.equal(last.event, 'error', what)
          assert.equal(last.data.code, 'upstream', what)
          assert.equal(typeof last.data.message, 'string')
          const run = await get(agent, `/runs/${last.data.public_run_id as string}`)
          assert.equal(run.status, 502, what)
          assert.equal(run.body.error, 'upstream')
          const replayed = await all(await resumeStream(agent, last.data.public_run_id as string))
          assert.equal(terminals(replayed).length, 1, what)
          assert.equal(replayed.at(-1)!.event, 'error')
        }
        cluster.model.next({ status: 400 })
        const sync = await chat(agent, { message: 'fail' })
        assert.equal(sync.status, 502)
        assert.equal(sync.body.error, 'upstream')
      },
    )

    await t.test('a conversation goes on after a failed run, with what was said before the failure', async () => {
      const agent = await cluster.agent('recovering')
      cluster.model.next({ text: 'I heard you, but', resetAfter: 3 })
      const failed = await chat(agent, { message: 'my colour is green' })
      assert.equal(failed.status, 502)
      cluster.model.next({ text: 'Green.' })
      const next = await chat(agent, { message: 'which colour?', conversation_id: failed.body.conversation_id })
      assert.equal(next.status, 200, JSON.stringify(next.body))
      const users = cluster.model.requests
        .at(-1)!
        .body.messages.filter((m) => m.role === 'user')
        .map((m) => m.content)
      assert.deepEqual(
        users,
        ['my colour is green', 'which colour?'],
        'the prompt of the failed run is kept exactly once',
      )
      const withErrors = await get(agent, `/conversations/${failed.body.conversation_id as string}?include=errors`)
      const without = await get(agent, `/conversations/${failed.body.conversation_id as string}`)
      assert.ok((withErrors.body.messages as unknown[]).length > (without.body.messages as unknown[]).length)
    })

    await t.test("cancelling a run closes the model's connection; the run keeps one terminal state", async () => {
      const agent = await cluster.agent('cancelled')
      cluster.model.next({ text: 'never ends', hangAfter: 1 })
      const stream = await chatStream(agent, { message: 'go' })
      const first = await stream.frames.next()
      assert.equal((first.value as { event: string }).event, 'delta')
      const publicRunId = stream.response.headers.get('x-public-run-id')!
      const runs = await cluster.api<{ runId: string }[]>('GET', '/api/runs')
      const runId = runs.body[0]!.runId
      assert.equal((await cluster.api('DELETE', `/api/runs/${runId}`)).status, 204)
      await lastRequest().ended
      assert.equal(lastRequest().closedEarly, true)
      const rest = await all(stream)
      assert.equal(terminals(rest).length, 1)
      assert.equal(rest.at(-1)!.event, 'error')
      assert.equal((await cluster.api('DELETE', `/api/runs/${runId}`)).status, 204, 'cancel is idempotent')
      const run = await cluster.api<{ status: string }>('GET', `/api/runs/${runId}`)
      assert.equal(run.body.status, 'cancelled')
      assert.equal((await get(agent, `/runs/${publicRunId}`)).status, 502)
      assert.deepEqual(await agreed(), ['cancelled', 'idle'])
    })

    await t.test(
      "the profile's timeout ends a silent model, and syncMaxDurationSeconds answers 504 while the run goes on",
      async () => {
        const slow = await cluster.agent('slow', { limits: { timeoutSeconds: 1 } })
        cluster.model.next({ text: 'half', hangAfter: 1 })
        const timedOut = await all(await chatStream(slow, { message: 'go' }))
        assert.equal(timedOut.at(-1)!.event, 'error')
        assert.equal(terminals(timedOut).length, 1)
        await lastRequest().ended
        assert.equal(lastRequest().closedEarly, true)
        assert.deepEqual(await agreed(), ['error', 'errored'])

        const sync = await cluster.agent('sync', { publish: { syncMaxDurationSeconds: 1 } })
        const words = Array.from({ length: 20 }, (_, i) => `w${i}`).join(' ')
        cluster.model.next({ text: words, deltas: 20, delayMs: 100 })
        const reply = await chat(sync, { message: 'go' })
        assert.equal(reply.status, 504)
        assert.equal(reply.body.error, 'sync_timeout')
        const publicRunId = reply.body.public_run_id as string
        assert.match(reply.body.conversation_id as string, /^conv_/)
        const pending = await get(sync, `/runs/${publicRunId}`)
        assert.equal(pending.status, 202)
        const done = await eventually('the run ends by itself', async () => {
          const run = await get(sync, `/runs/${publicRunId}`)
          return run.status === 202 ? undefined : run
        })
        assert.equal(done.status, 200)
        assert.equal(done.body.message, words)
      },
    )

    await t.test('a run that costs more than it may is stopped, and its session errored to everybody', async () => {
      const agent = await cluster.agent('dear', {
        model: 'openai/gpt-5',
        tools: ['calculator'],
        limits: { maxCostCents: 1 },
      })
      // A thousand tokens of an answer cost a cent. This story comes last, because its second answer may or may not be asked for.
      cluster.model.next(
        {
          text: 'word '.repeat(1_200),
          toolCalls: [{ id: 'call_1', name: 'calculator', arguments: { expression: '1 + 1' } }],
        },
        { text: 'never ends', hangAfter: 1 },
      )
      const stopped = await all(await chatStream(agent, { message: 'what is 1 + 1?' }))
      assert.equal(terminals(stopped).length, 1)
      const [run] = (await cluster.api<{ error: { code: string } }[]>('GET', '/api/runs')).body
      assert.equal(run!.error.code, 'budget_exceeded')
      assert.deepEqual(await agreed(), ['error', 'errored'])
    })
  })
}

test('kill -9 of one of four processes mid-run', { timeout: 600_000 }, async (t) => {
  const cluster = await startCluster(t, 'four', { apart: parts })
  for (const role of ['sidecar', 'runner'] as const) {
    await t.test(
      `kill -9 of the ${role} mid-run leaves one error, no stuck session, and a conversation that goes on`,
      async () => {
        const agent = await cluster.agent(`survives-${role}`)
        cluster.model.next({ text: 'Nice to meet you.' })
        const first = await chat(agent, { message: 'my name is Ada' })
        assert.equal(first.status, 200, JSON.stringify(first.body))
        cluster.model.next({ text: 'will not be finished', hangAfter: 2 })
        const stream = await chatStream(agent, { message: 'go on', conversation_id: first.body.conversation_id })
        await stream.frames.next()
        await cluster.kill(role)
        const rest = await all(stream)
        assert.equal(terminals(rest).length, 1)
        assert.equal(rest.at(-1)!.event, 'error')
        await cluster.start(role)
        await everythingTerminal(cluster, agent)
        cluster.model.next({ text: 'Ada.' })
        const again = await eventually('the conversation goes on', async () => {
          const reply = await chat(agent, { message: 'who am I?', conversation_id: first.body.conversation_id })
          return reply.status === 200 ? reply : undefined
        })
        assert.equal(again.body.message, 'Ada.')
        const sent = cluster.model.requests.at(-1)!.body.messages.map((m) => m.content)
        assert.ok(sent.includes('my name is Ada'), `history is restored on a new ${role}: ${JSON.stringify(sent)}`)
      },
    )
  }

  await t.test(
    'kill -9 of the conductor mid-run: the run is interrupted once, the chat ends in one error, the session is free',
    async () => {
      const agent = await cluster.agent('orphan')
      cluster.model.next({ text: 'will not be finished', hangAfter: 2 })
      const stream = await chatStream(agent, { message: 'go' })
      await stream.frames.next()
      const conversation = stream.response.headers.get('x-conversation-id')!
      await cluster.kill('conductor')
      const asked = cluster.model.requests.at(-1)!
      await asked.ended
      assert.equal(asked.closedEarly, true, 'the model is not left talking to nobody')
      await cluster.start('conductor')
      const rest = await all(stream)
      assert.equal(terminals(rest).length, 1)
      assert.equal(rest.at(-1)!.event, 'error')
      const statuses = await everythingTerminal(cluster, agent)
      assert.deepEqual(statuses, ['interrupted'])
      cluster.model.next({ text: 'Here again.' })
      const again = await eventually('the conversation goes on', async () => {
        const reply = await chat(agent, { message: 'hello?', conversation_id: conversation })
        return reply.status === 200 ? reply : undefined
      })
      assert.equal(again.body.message, 'Here again.')
    },
  )

  await t.test('kill -9 of the gateway mid-run: the run finishes, the next gateway serves its answer', async () => {
    const agent = await cluster.agent('handover')
    const words = Array.from({ length: 20 }, (_, i) => `w${i}`).join(' ')
    cluster.model.next({ text: words, deltas: 20, delayMs: 50 })
    const stream = await chatStream(agent, { message: 'go' })
    await stream.frames.next()
    const publicRunId = stream.response.headers.get('x-public-run-id')!
    await cluster.kill('gateway')
    await all(stream).catch(() => {})
    await cluster.start('gateway')
    const resumed = await all(await resumeStream(agent, publicRunId))
    assert.equal(terminals(resumed).length, 1)
    assert.equal(resumed.at(-1)!.event, 'done')
    assert.equal(resumed.at(-1)!.data.message, words)
    const run = await eventually('the public run is finalized', async () => {
      const reply = await get(agent, `/runs/${publicRunId}`)
      return reply.status === 202 ? undefined : reply
    })
    assert.deepEqual([run.status, run.body.message], [200, words])
    assert.equal(text(resumed) === words || text(resumed) === '', true)
  })
})

test('kill -9 of the single process mid-run: after a restart nothing is running and the chat has one terminal state', async (t) => {
  const cluster = await startCluster(t, 'single', { apart: parts })
  const agent = await cluster.agent('phoenix')
  cluster.model.next({ text: 'will not be finished', hangAfter: 2 })
  const stream = await chatStream(agent, { message: 'go' })
  await stream.frames.next()
  const publicRunId = stream.response.headers.get('x-public-run-id')!
  await cluster.kill('gateway')
  await all(stream).catch(() => {})
  await cluster.start('gateway')
  assert.deepEqual(await everythingTerminal(cluster, agent), ['interrupted'])
  const run = await eventually('the public run is finalized', async () => {
    const reply = await get(agent, `/runs/${publicRunId}`)
    return reply.status === 202 ? undefined : reply
  })
  assert.equal(run.status, 502)
  const replayed = await all(await resumeStream(agent, publicRunId))
  assert.equal(terminals(replayed).length, 1)
})

/** Waits until no run and no session is running, and returns the statuses of the agent's runs. */
const everythingTerminal = (cluster: Cluster, { profile }: Agent): Promise<string[]> =>
  eventually('every run is terminal and no session is stuck', async () => {
    const statuses = async (path: string): Promise<string[]> =>
      (await cluster.api<{ status: string }[]>('GET', path)).body.map(({ status }) => status)
    const all = Promise.all(['/api/runs', '/api/sessions', `/api/runs?profile=${profile}`].map(statuses))
    // A conductor that is starting, or whose database is starting, cannot list.
    const [runs, sessions, own] = await all.catch(() => [])
    return runs && ![...runs, ...sessions!].includes('running') && own
  })
