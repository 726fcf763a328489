import assert from 'node:assert/strict'
import { test } from 'node:test'
import { all, chat, chatStream, type Frame, get, resumeStream, terminals } from './client.ts'
import { type Agent, type Cluster, eventually } from './cluster.ts'
import { startPaying } from './paying.ts'

const pay = { id: 'c1', name: 'pay', arguments: { amount: 5 } }
// Attempts that come while the dead process is still starting count too.
const options = { tools: ['pay'], onCrash: 'retry', limits: { maxAttempts: 10 } } as const
const roles = ['sidecar', 'runner', 'conductor'] as const

interface Run {
  readonly runId: string
  readonly status: string
  readonly attempt: number
  readonly result?: string
  readonly usage?: { readonly inputTokens: number; readonly outputTokens: number }
  readonly events: readonly { readonly seq: number; readonly type: string; readonly stage?: string }[]
}

/** The one run of an agent that has had one chat. */
const onlyRun = async (cluster: Cluster, { profile }: Agent): Promise<Run> => {
  const runs = await cluster.api<Run[]>('GET', `/api/runs?profile=${profile}`)
  assert.equal(runs.body.length, 1)
  return (await cluster.api<Run>('GET', `/api/runs/${runs.body[0]!.runId}`)).body
}

const untilText = async (stream: { frames: AsyncGenerator<Frame> }, wanted: string): Promise<void> => {
  let said = ''
  while (!said.includes(wanted)) {
    const { done, value } = await stream.frames.next()
    assert.equal(done, false, `the stream ended after: ${said}`)
    said += String((value as Frame).data['text'] ?? '')
  }
}

async function meters(dsn: string, runId: string): Promise<Record<string, unknown>[]> {
  const { default: pg } = await import('pg')
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  try {
    await client.query("BEGIN; SELECT set_config('app.tenant_id', 'default', true)")
    const { rows } = await client.query<Record<string, unknown>>(
      'SELECT status, tool_calls, output_tokens::int FROM run_meters WHERE run_id = $1 ORDER BY recorded_at',
      [runId],
    )
    return rows
  } finally {
    await client.end()
  }
}

/**
 * Brings a run to this point: the tool was executed, its result is known, and the next model call is in the middle of its answer.
 * That answer never ends where the turn dies with a process, and is a slow one where the turn goes on (`outlives`).
 */
async function midway(cluster: Cluster, agent: Agent, outlives = false) {
  if (outlives) {
    cluster.model.next({ text: 'Let me pay.', toolCalls: [pay] }, { text: 'It is done.', delayMs: 1_500 })
  } else {
    cluster.model.next(
      { text: 'Let me pay.', toolCalls: [pay] },
      { text: 'It is nearly', hangAfter: 2 },
      { text: 'It is done.' },
    )
  }
  const stream = await chatStream(agent, { message: 'pay 5' })
  await untilText(stream, outlives ? 'It' : 'It is')
  return {
    stream,
    conversation: stream.response.headers.get('x-conversation-id')!,
    publicRunId: stream.response.headers.get('x-public-run-id')!,
  }
}

/** Asserts that there is one run under one id, whole, paid once and metered for all attempts, and that the next turn knows what happened. */
async function assertWhole(
  cluster: Cluster,
  agent: Agent,
  conversation: string,
  last: Frame,
  outlived = false,
): Promise<void> {
  assert.equal(last.event, 'done', JSON.stringify([last, await onlyRun(cluster, agent)], null, 1) + cluster.output())
  assert.equal(last.data['message'], 'Let me pay.\n\nIt is done.')
  const run = await onlyRun(cluster, agent)
  assert.deepEqual([run.status, run.result], ['ok', 'Let me pay.\n\nIt is done.'])
  assert.equal(run.attempt > 1, !outlived, 'whoever reads on begins nothing again')
  assert.deepEqual(
    run.events.map(({ seq }) => seq),
    run.events.map((_, i) => i + 1),
  )
  assert.equal(run.events.filter(({ type }) => type === 'result' || type === 'error').length, 1)
  assert.equal(run.events.filter(({ type }) => type === 'tool_call').length, 1)
  assert.equal(run.events.filter(({ stage }) => stage === 'retrying').length, run.attempt - 1)
  // Three words before the tool, and three after it. The tokens of the answer that was cut are unknown.
  assert.deepEqual(await meters(cluster.dsn, run.runId), [{ status: 'ok', tool_calls: 1, output_tokens: 6 }])
  cluster.model.next({ text: 'You are welcome.' })
  const next = await chat(agent, { message: 'thanks', conversation_id: conversation })
  assert.equal(next.status, 200, JSON.stringify(next.body))
  const heard = cluster.model.requests.at(-1)!.body.messages
  assert.deepEqual(
    heard.map(({ role, content }) => [role, content ?? '']),
    [
      ['system', 'Be brief.'],
      ['user', 'pay 5'],
      ['assistant', 'Let me pay.'],
      ['tool', 'paid, receipt 1'],
      ['assistant', 'It is done.'],
      ['user', 'thanks'],
    ],
  )
}

test('one of four processes dies or stops under a run that is paid for', { timeout: 600_000 }, async (t) => {
  const { cluster, payments, hold } = await startPaying(t, 'four')
  /** Makes an agent for this story alone, and forgets earlier payments. */
  const begin = (story: string): Promise<Agent> => {
    payments.length = 0
    return cluster.agent(story, options)
  }
  for (const role of roles) {
    await t.test(
      `kill -9 of the ${role} behind a tool call: the run goes on, and the tool is executed once`,
      async () => {
        const agent = await begin(`without-${role}`)
        const outlives = role === 'conductor'
        const { stream, conversation } = await midway(cluster, agent, outlives)
        await cluster.kill(role)
        await cluster.start(role)
        const rest = await all(stream)
        assert.equal(terminals(rest).length, 1)
        await assertWhole(cluster, agent, conversation, rest.at(-1)!, outlives)
        assert.equal(payments.length, 1)
        const replayed = await all(await resumeStream(agent, stream.response.headers.get('x-public-run-id')!))
        assert.equal(replayed.at(-1)!.data['message'], 'Let me pay.\n\nIt is done.')
      },
    )
  }

  await t.test(
    'kill -9 of the sidecar under a tool call: the runner lets the call end, and the next attempt gets its result',
    async () => {
      const agent = await begin('held-sidecar')
      const release = hold()
      cluster.model.next({ text: 'Let me pay.', toolCalls: [pay] }, { text: 'It is done.' })
      const stream = await chatStream(agent, { message: 'pay 5' })
      await eventually('the tool is being executed', async () => payments.length === 1)
      await cluster.kill('sidecar')
      await cluster.start('sidecar')
      await eventually('the run is tried again', async () => (await onlyRun(cluster, agent)).attempt > 1)
      release()
      const rest = await all(stream)
      await assertWhole(cluster, agent, stream.response.headers.get('x-conversation-id')!, rest.at(-1)!)
      assert.equal(payments.length, 1)
    },
  )

  await t.test(
    'kill -9 of the runner under a tool call: the call is executed again, and the tool can tell that it is the same',
    async () => {
      const agent = await begin('held-runner')
      const release = hold()
      cluster.model.next({ text: 'Let me pay.', toolCalls: [pay] }, { text: 'It is done.' })
      const stream = await chatStream(agent, { message: 'pay 5' })
      await eventually('the tool is being executed, and that is on record', async () => {
        return payments.length === 1 && (await onlyRun(cluster, agent)).events.some(({ type }) => type === 'tool_call')
      })
      await cluster.kill('runner')
      release()
      await cluster.start('runner')
      const rest = await all(stream)
      assert.equal(rest.at(-1)!.event, 'done', cluster.output())
      assert.equal(payments.length, 2)
      assert.equal(payments[0]!.idempotencyKey, payments[1]!.idempotencyKey)
      assert.equal(payments[0]!.idempotencyKey, `${(await onlyRun(cluster, agent)).runId}:c1`)
    },
  )

  await t.test('SIGTERM of the only conductor under a run: it is let end, not interrupted', async () => {
    const agent = await begin('let-end')
    const { stream, conversation } = await midway(cluster, agent, true)
    await cluster.stop('conductor')
    await cluster.start('conductor')
    const rest = await all(stream)
    await assertWhole(cluster, agent, conversation, rest.at(-1)!, true)
    assert.equal(payments.length, 1)
  })
})

test('kill -9 of the single process behind a tool call: the next one goes on, and the tool is executed once', async (t) => {
  const { cluster, payments } = await startPaying(t, 'single')
  const agent = await cluster.agent('payer', options)
  const { stream, conversation, publicRunId } = await midway(cluster, agent)
  await eventually('the result of the call is on record', async () =>
    (await onlyRun(cluster, agent)).events.some(({ type }) => type === 'tool_result'),
  )
  await cluster.kill('conductor')
  await all(stream).catch(() => {})
  await cluster.start('conductor')
  await eventually('the public run is over', async () => (await get(agent, `/runs/${publicRunId}`)).status !== 202)
  const resumed = await all(await resumeStream(agent, publicRunId))
  assert.equal(terminals(resumed).length, 1)
  await assertWhole(cluster, agent, conversation, resumed.at(-1)!)
  assert.equal(payments.length, 1)
})
