import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { startModelServer } from '#testing'
import { vendorPackage } from '../../runtimes/runtime-a/sdk.ts'
import { type Cluster, eventually, forms, startCluster } from './cluster.ts'

interface Run {
  readonly runId: string
  readonly sessionId: string
  readonly status: string
  readonly result?: string
  readonly events: readonly Record<string, unknown>[]
}

const { missing } = vendorPackage()
// Set by `npm run test:runtimes`, which has just installed it.
if (missing !== undefined && process.env['AGENT_ORC_VENDOR_RUNTIMES'] === 'required') throw new Error(missing)

async function finished(cluster: Cluster, body: object): Promise<Run> {
  const accepted = await cluster.api<Run>('POST', '/api/runs', body)
  assert.equal(accepted.status, 202, JSON.stringify(accepted.body))
  return eventually('the run ends', async () => {
    const run = (await cluster.api<Run>('GET', `/api/runs/${accepted.body.runId}`)).body
    return ['queued', 'running'].includes(run.status) ? undefined : run
  })
}

/** A cluster on a stand-in model server, with a profile of runtime_a. */
async function standing(t: TestContext, form: (typeof forms)[number]) {
  const models = await startModelServer(t)
  const cluster = await startCluster(t, form, {
    env: { ANTHROPIC_API_KEY: 'stand-in', ANTHROPIC_BASE_URL: models.url },
    apart: ['sidecar'],
  })
  const profile = {
    name: 'a',
    runtime: 'runtime_a',
    model: 'anthropic/stand-in',
    tools: ['calculate'],
    instructions: 'Be brief.',
  }
  // A runner that has not asked its sidecar yet offers no runtime.
  await eventually('a profile is placed', async () => {
    const { status } = await cluster.api('POST', '/api/profiles', profile)
    return status === 201 || status === 409
  })
  return { models, cluster }
}

for (const form of forms) {
  test(
    `${form}: runtime_a uses the session's tools, and a session goes on on another sidecar`,
    { skip: missing ?? false },
    async (t) => {
      const { models, cluster } = await standing(t, form)
      models.next(
        { toolCalls: [{ id: 'toolu_1', name: 'mcp__runner__calculate', arguments: { expression: '6 * 7' } }] },
        { text: 'It is 42.' },
      )
      const first = await finished(cluster, { profile: 'a', prompt: 'What is 6 x 7?' })
      assert.deepEqual([first.status, first.result], ['ok', 'It is 42.'])
      const result = first.events.find(({ type }) => type === 'tool_result')!
      assert.deepEqual([result['name'], result['ok'], result['content']], ['calculate', true, '42'])

      await cluster.stop('sidecar')
      await cluster.start('sidecar')
      models.next({ text: 'I said 42.' })
      const second = await finished(cluster, { profile: 'a', sessionId: first.sessionId, prompt: 'What was it?' })
      assert.deepEqual([second.status, second.result], ['ok', 'I said 42.'])
      assert.match(JSON.stringify(models.requests.at(-1)!.body.messages), /What is 6 x 7\?.*It is 42\..*What was it\?/)
    },
  )

  test(
    `${form}: a run of runtime_a that takes too long, and one that is cancelled, end once and let go of the model`,
    { skip: missing ?? false },
    async (t) => {
      const { models, cluster } = await standing(t, form)
      const stall = { text: 'one two three', delayMs: 20, hangAfter: 1 }
      models.next(stall)
      const limits = { timeoutSeconds: 3 }
      await cluster.api('PUT', '/api/profiles/a', {
        name: 'a',
        runtime: 'runtime_a',
        model: 'anthropic/stand-in',
        limits,
      })
      const late = await finished(cluster, { profile: 'a', prompt: 'hang' })
      const ends = late.events.filter(({ type }) => type === 'error' || type === 'result')
      assert.deepEqual(
        ends.map(({ code }) => code),
        ['timeout'],
      )
      assert.equal(late.status, 'error')
      await models.requests.at(-1)!.ended

      models.next(stall)
      const { body } = await cluster.api<Run>('POST', '/api/runs', { profile: 'a', prompt: 'hang' })
      await eventually('the model is asked', async () => models.requests.length === 2)
      await cluster.api('DELETE', `/api/runs/${body.runId}`)
      await models.requests.at(-1)!.ended
      assert.deepEqual(
        models.requests.map(({ closedEarly }) => closedEarly),
        [true, true],
      )
      const cancelled = await eventually('the run ends', async () => {
        const run = (await cluster.api<Run>('GET', `/api/runs/${body.runId}`)).body
        return run.status !== 'running' && run
      })
      assert.equal(cancelled.status, 'cancelled')
    },
  )
}
