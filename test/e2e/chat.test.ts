import assert from 'node:assert/strict'
import { test } from 'node:test'
import { all, chat, chatStream, get, resumeStream, terminals, text } from './client.ts'
import { eventually, forms, parts, startCluster } from './cluster.ts'

for (const form of forms) {
  test(`${form}: a published agent is used: sync, stream, history, tools, resume`, async (t) => {
    const cluster = await startCluster(t, form, { apart: parts })
    const lastRequest = () => cluster.model.requests.at(-1)!
    await t.test('a published agent answers synchronously, streamed, and remembers the conversation', async () => {
      const agent = await cluster.agent('memory')

      cluster.model.next({ text: 'Hello, Ada.' })
      const first = await chat(agent, { message: 'I am Ada.' })
      assert.equal(first.status, 200, JSON.stringify(first.body))
      assert.equal(first.body.message, 'Hello, Ada.')
      assert.match(first.body.conversation_id as string, /^conv_/)
      assert.match(first.body.public_run_id as string, /^prun_/)

      cluster.model.next({ text: 'You are Ada, I believe.' })
      const second = await chatStream(agent, { message: 'Who am I?', conversation_id: first.body.conversation_id })
      assert.equal(second.response.headers.get('content-type'), 'text/event-stream')
      const frames = await all(second)
      assert.equal(text(frames), 'You are Ada, I believe.')
      assert.deepEqual(frames.at(-1)!.event, 'done')
      assert.equal(frames.at(-1)!.data.message, 'You are Ada, I believe.')
      assert.equal(frames.at(-1)!.data.conversation_id, first.body.conversation_id)
      assert.equal(terminals(frames).length, 1)

      const seen = cluster.model.requests.at(-1)!.body.messages.map((m) => [m.role, m.content])
      assert.deepEqual(seen.slice(-3), [
        ['user', 'I am Ada.'],
        ['assistant', 'Hello, Ada.'],
        ['user', 'Who am I?'],
      ])

      const history = await get(agent, `/conversations/${first.body.conversation_id as string}`)
      const messages = history.body.messages as { role: string; content: string; public_run_id?: string; at: string }[]
      assert.deepEqual(
        messages.map((m) => [m.role, m.content]),
        [
          ['user', 'I am Ada.'],
          ['assistant', 'Hello, Ada.'],
          ['user', 'Who am I?'],
          ['assistant', 'You are Ada, I believe.'],
        ],
      )
      assert.equal(messages[1]!.public_run_id, first.body.public_run_id)
      assert.ok(messages.every((m) => !Number.isNaN(Date.parse(m.at))))
      const limited = await get(agent, `/conversations/${first.body.conversation_id as string}?limit=2`)
      assert.equal((limited.body.messages as unknown[]).length, 2)
    })

    await t.test("the model uses a platform tool through the session's MCP endpoint", async () => {
      const agent = await cluster.agent('tooled', {
        tools: ['calculate', 'current_time', 'not_a_tool'],
        publish: { exposeToolEvents: true },
      })
      cluster.model.next(
        { text: '', toolCalls: [{ id: 'call_1', name: 'calculate', arguments: { expression: '0.17 * 2310' } }] },
        { text: 'It is 392.7.' },
      )
      const frames = await all(await chatStream(agent, { message: '17% of 2310?' }))
      assert.equal(text(frames), 'It is 392.7.')
      const tools = frames.filter((f) => f.event === 'tool').map((f) => f.data)
      assert.deepEqual(tools, [
        { id: 'call_1', name: 'calculate', status: 'running' },
        { id: 'call_1', status: 'ok' },
      ])
      const [offered, answered] = cluster.model.requests.slice(-2).map((r) => r.body)
      const names = (offered!.tools as { function: { name: string } }[]).map((tool) => tool.function.name)
      assert.deepEqual(
        names.toSorted(),
        ['calculate', 'current_time'],
        'the toolkit is the profile cut to the registry',
      )
      const result = answered!.messages.at(-1)!
      assert.equal(result.role, 'tool')
      assert.match(String(result.content), /392\.7/)
    })

    await t.test('tool events stay inside unless the agent exposes them', async () => {
      const agent = await cluster.agent('discreet', { tools: ['calculate'] })
      cluster.model.next(
        { text: '', toolCalls: [{ name: 'calculate', arguments: { expression: '1+1' } }] },
        { text: 'Two.' },
      )
      const frames = await all(await chatStream(agent, { message: '1+1?' }))
      assert.deepEqual(new Set(frames.map((f) => f.event)), new Set(['delta', 'done']))
    })

    await t.test('a client that goes away does not cancel its run, and may resume exactly where it was', async () => {
      const agent = await cluster.agent('patient')
      const words = Array.from({ length: 30 }, (_, i) => `word${i}`).join(' ')
      cluster.model.next({ text: words, deltas: 30, delayMs: 25 })
      const stream = await chatStream(agent, { message: 'count' })
      const publicRunId = stream.response.headers.get('x-public-run-id')!
      const before = []
      for await (const frame of stream.frames) {
        before.push(frame)
        if (before.length === 5) break
      }
      stream.leave()
      const rest = await all(await resumeStream(agent, publicRunId, before.at(-1)!.id))
      assert.equal(text([...before, ...rest]), words)
      assert.equal(rest.at(-1)!.event, 'done')
      assert.equal(lastRequest().closedEarly, false)
      const run = await get(agent, `/runs/${publicRunId}`)
      assert.equal(run.status, 200)
      assert.equal(run.body.status, 'ok')
      assert.equal(run.body.message, words)
      const replayed = await all(await resumeStream(agent, publicRunId))
      assert.equal(replayed.at(-1)!.event, 'done')
      assert.equal(replayed.at(-1)!.data.message, words)
      assert.equal(terminals(replayed).length, 1)
    })

    await t.test("the conductor's own routes show the run: summary, events, SSE and JSONL agree", async () => {
      const agent = await cluster.agent('watched')
      cluster.model.next({ text: 'one two three' })
      const submitted = await cluster.api<{ runId: string; sessionId: string }>('POST', '/api/runs', {
        profile: agent.profile,
        prompt: 'go',
      })
      assert.equal(submitted.status, 202)
      assert.match(submitted.body.sessionId, /^sess-[0-9a-f]{8}-[0-9a-f]{8}$/)
      const done = await eventually('the run ends', async () => {
        const run = await cluster.api<{ status: string; result?: string; events: { type: string; seq: number }[] }>(
          'GET',
          `/api/runs/${submitted.body.runId}`,
        )
        return run.body.status === 'running' ? undefined : run.body
      })
      assert.equal(done.status, 'ok')
      assert.equal(done.result, 'one two three')
      assert.deepEqual(
        done.events.map((e) => e.seq),
        done.events.map((_, i) => i + 1),
        'sequence numbers count from 1 without a gap',
      )
      assert.equal(done.events.at(-1)!.type, 'result')
      const jsonl = await cluster.api<string>('GET', `/api/runs/${submitted.body.runId}/events`)
      const lines = (typeof jsonl.body === 'string' ? jsonl.body : JSON.stringify(jsonl.body)).trim().split('\n')
      assert.deepEqual(
        lines.map((l) => (JSON.parse(l) as { seq: number }).seq),
        done.events.map((e) => e.seq),
      )
      const sse = await cluster.api<string>('GET', `/api/runs/${submitted.body.runId}/stream`)
      assert.match(sse.body, /event: result\n/)
      assert.doesNotMatch(sse.body, /runtimeSessionId/)
      const session = await cluster.api<{ status: string; runCount: number; lastRunStatus: string }>(
        'GET',
        `/api/sessions/${submitted.body.sessionId}`,
      )
      assert.deepEqual([session.body.status, session.body.runCount, session.body.lastRunStatus], ['idle', 1, 'ok'])
    })
  })
}
