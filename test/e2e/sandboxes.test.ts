import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { test, type TestContext } from 'node:test'
import { type Cluster, eventually, type Form, forms, type Part } from './cluster.ts'
import { type Lease, type Run, startWithSandboxes } from './sandbox-roles.ts'

/** Processes of this machine whose environment says that they are the worker of this session. */
function workersOf(sessionId: string): number[] {
  return readdirSync('/proc').flatMap((pid) => {
    try {
      if (!/^\d+$/.test(pid) || !readFileSync(`/proc/${pid}/environ`, 'utf8').includes(sessionId)) return []
      // The shell that the provider starts execs the worker.
      return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('agent-orc.js') ? [Number(pid)] : []
    } catch {
      return []
    }
  })
}
const linux = process.platform === 'linux'

async function setup(
  t: TestContext,
  form: Form,
  env: Record<string, string> = {},
  profile: object = {},
  apart: readonly Part[] = [],
) {
  const cluster = await startWithSandboxes(t, form, env, apart)
  const created = await cluster.api('POST', '/api/profiles', {
    name: 'coder',
    model: 'openai/stand-in',
    workerMode: 'sandbox',
    ...profile,
  })
  assert.equal(created.status, 201, JSON.stringify(created.body))
  return cluster
}

/** Submits a run, once a runner has said that it has sandboxes. */
async function submit(cluster: Cluster, prompt: string, sessionId?: string, profile = 'coder'): Promise<Run> {
  return eventually('a runner takes it', async () => {
    const task = { profile, prompt, ...(sessionId === undefined ? {} : { sessionId }) }
    const { status, body } = await cluster.api<Run>('POST', '/api/runs', task)
    if (status === 503) return undefined
    assert.equal(status, 202, JSON.stringify(body))
    return body
  })
}
const over = (cluster: Cluster, { runId }: Pick<Run, 'runId'>): Promise<Run> =>
  eventually(
    'the run is over',
    async () => {
      const { body } = await cluster.api<Run>('GET', `/api/runs/${runId}`)
      return body.status !== 'running' && body
    },
    90,
  )
async function say(cluster: Cluster, prompt: string, reply: string, sessionId?: string, profile = 'coder') {
  cluster.model.next({ text: reply })
  const run = await over(cluster, await submit(cluster, prompt, sessionId, profile))
  assert.equal(run.result, reply, `${JSON.stringify(run)}\n${cluster.output()}`)
  const sandbox = run.events.find(({ stage }) => stage === 'sandbox')
  const told = cluster.model.requests.at(-1)!.body.messages.map(({ content }) => String(content))
  return { sessionId: run.sessionId, start: sandbox?.['start'], told }
}
const leaseOf = async (cluster: Cluster, sessionId: string): Promise<Lease> =>
  (await cluster.api<Lease>('GET', `/api/sessions/${sessionId}/worker`)).body

for (const form of forms) {
  test(`${form}: a session has a worker process of its own, which its second run finds again`, async (t) => {
    const cluster = await setup(t, form)
    const first = await say(cluster, 'I am Marmalade.', 'Hello, Marmalade.')
    assert.equal(first.start, 'launched')
    const { sessionId } = first
    if (linux) assert.equal(workersOf(sessionId).length, 1)
    const lease = await leaseOf(cluster, sessionId)
    assert.deepEqual([lease.sessionId, lease.state], [sessionId, 'running'])
    assert.deepEqual(
      (await cluster.api<Lease[]>('GET', '/api/worker/leases')).body.map((one) => one.sessionId),
      [sessionId],
    )
    const second = await say(cluster, 'Who am I?', 'Marmalade.', sessionId)
    assert.equal(second.start, 'running')
    assert.ok(second.told.some((content) => content.includes('I am Marmalade.')))
    assert.equal((await leaseOf(cluster, sessionId)).sandboxId, lease.sandboxId)
    assert.equal((await cluster.api('DELETE', `/api/sessions/${sessionId}`)).status, 204)
    if (linux) await eventually('its process is gone', async () => workersOf(sessionId).length === 0)
    assert.equal((await cluster.api('GET', `/api/sessions/${sessionId}/worker`)).status, 404)
  })
}

test('two runs in two sessions at once are in two processes, and neither hears the other', async (t) => {
  const cluster = await setup(t, 'single', {}, { model: 'builtin/demo' })
  const runs = await Promise.all(['anise', 'basil'].map((word) => submit(cluster, `Remember ${word}.`)))
  const ended = await Promise.all(runs.map((run) => over(cluster, run)))
  assert.deepEqual(
    ended.map(({ status }) => status),
    ['ok', 'ok'],
    cluster.output(),
  )
  assert.notEqual(ended[0]!.sessionId, ended[1]!.sessionId)
  const { body } = await cluster.api<Lease[]>('GET', '/api/worker/leases')
  assert.equal(new Set(body.map(({ sandboxId }) => sandboxId)).size, 2)
})

test('an idle worker is stopped in its tracks and goes on with the conversation', async (t) => {
  const cluster = await setup(t, 'single', { AGENT_ORC_SANDBOX_IDLE_PAUSE: '500ms' })
  const { sessionId } = await say(cluster, 'I am Marmalade.', 'Hello.')
  await eventually('it is paused', async () => (await leaseOf(cluster, sessionId)).state === 'paused')
  const again = await say(cluster, 'Who am I?', 'Marmalade.', sessionId)
  assert.equal(again.start, 'resumed')
  assert.ok(again.told.some((content) => content.includes('I am Marmalade.')))
})

test(
  'kill -9 of a worker ends its run with one error, and the next run has a new worker with the conversation',
  {
    skip: !linux,
  },
  async (t) => {
    const cluster = await setup(t, 'single')
    const { sessionId } = await say(cluster, 'I am Marmalade.', 'Hello.')
    const lease = await leaseOf(cluster, sessionId)
    cluster.model.next({ text: 'It takes', hangAfter: 1 })
    const run = await submit(cluster, 'Take your time.', sessionId)
    await eventually('it is under way', async () => {
      const { body } = await cluster.api<Run>('GET', `/api/runs/${run.runId}`)
      return body.events.some(({ type }) => type === 'assistant')
    })
    for (const pid of workersOf(sessionId)) process.kill(pid, 'SIGKILL')
    const ended = await over(cluster, run)
    assert.equal(ended.status, 'error')
    assert.deepEqual(
      ended.events.filter(({ type }) => type === 'error' || type === 'result').map(({ code }) => code),
      ['sidecar_lost'],
    )
    const again = await say(cluster, 'Who am I?', 'Marmalade.', sessionId)
    assert.equal(again.start, 'launched')
    assert.ok(again.told.some((content) => content.includes('I am Marmalade.')))
    assert.notEqual((await leaseOf(cluster, sessionId)).sandboxId, lease.sandboxId)
  },
)

test('a warm worker is ready before the first run, and is replaced when it is taken', async (t) => {
  const cluster = await setup(t, 'single', { AGENT_ORC_SANDBOX_WARM: 'default/coder=1' })
  const runner = new URL('/metrics', cluster.runnerUrl)
  await eventually('it is ready', async () =>
    (await (await fetch(runner)).text()).includes('runner_sandboxes{state="warm"} 1'),
  )
  const first = await say(cluster, 'I am Marmalade.', 'Hello.')
  assert.equal(first.start, 'warm')
  assert.equal((await leaseOf(cluster, first.sessionId)).warm, true)
  const second = await say(cluster, 'Who am I?', 'Marmalade.', first.sessionId)
  assert.ok(second.told.some((content) => content.includes('I am Marmalade.')))
  await eventually('another one is ready', async () =>
    (await (await fetch(runner)).text()).includes('runner_sandboxes{state="warm"} 1'),
  )
})

test(
  'a stopped runner leaves no worker, and a conversation that is restored elsewhere goes on in a new one',
  {
    skip: !linux,
  },
  async (t) => {
    const cluster = await setup(t, 'four', {}, {}, ['runner'])
    const { sessionId } = await say(cluster, 'I am Marmalade.', 'Hello.')
    assert.equal(workersOf(sessionId).length, 1)
    assert.equal((await cluster.stop('runner')).code, 0)
    assert.deepEqual(workersOf(sessionId), [])
    await cluster.start('runner')
    const again = await eventually('the runner is back', async () => {
      cluster.model.next({ text: 'Marmalade.' })
      const { status, body } = await cluster.api<Run>('POST', '/api/runs', {
        profile: 'coder',
        prompt: 'Who am I?',
        sessionId,
      })
      return status === 202 && body
    })
    const run = await over(cluster, again)
    assert.equal(run.status, 'ok', `${JSON.stringify(run)}\n${cluster.output()}`)
    const told = cluster.model.requests.at(-1)!.body.messages.map(({ content }) => String(content))
    assert.ok(told.some((content) => content.includes('I am Marmalade.')))
  },
)

test('without a signing key a run of a sandbox profile ends with an error that names the setting', async (t) => {
  const cluster = await setup(t, 'four', { AGENT_ORC_WORKER_SIGNING_KEY_CURRENT: '' })
  const run = await over(cluster, await submit(cluster, 'hello'))
  assert.deepEqual([run.status, run.error?.code], ['error', 'worker_token_unavailable'])
  assert.match(run.error!.message, /AGENT_ORC_WORKER_SIGNING_KEY_CURRENT/)
})

test('a profile whose sandbox no runner has is refused with a sentence that names it', async (t) => {
  const cluster = await setup(t, 'single', {}, { sandbox: { provider: 'moon' } })
  const placement = await eventually('the runner has said what it has', async () => {
    const { body } = await cluster.api<{ workerPlacement?: unknown }>('GET', '/api/profiles/coder')
    return body.workerPlacement
  })
  const { status, body } = await cluster.api<{ error: string; message: string }>('POST', '/api/runs', {
    profile: 'coder',
    prompt: 'hello',
  })
  assert.deepEqual([status, body.error], [503, 'no_runner'])
  assert.match(body.message, /in a sandbox of 'moon'/)
  const { detail, ...rest } = placement as { detail: string }
  assert.deepEqual(rest, { substrate: null, source: 'unresolved', servable: false, requested: 'moon' })
  assert.match(detail, /^No live runner has 'moon'; they have .*process/)
})

test('the seconds of a sandbox are in the usage of its tenant', async (t) => {
  const cluster = await setup(t, 'single')
  const { sessionId } = await say(cluster, 'hello', 'Hello.')
  cluster.model.next({ text: 'It takes', hangAfter: 1 })
  const run = await submit(cluster, 'Take your time.', sessionId)
  await eventually('it took more than a second', async () => {
    const { body } = await cluster.api<Run>('GET', `/api/runs/${run.runId}`)
    const first = body.events[0]?.['at']
    return first !== undefined && Date.now() - Date.parse(String(first)) > 1_100
  })
  await cluster.api('DELETE', `/api/runs/${run.runId}`)
  await over(cluster, run)
  const { body } = await cluster.api<{ totals: { sandboxSeconds: number } }>('GET', '/api/usage?window=1h')
  assert.ok(body.totals.sandboxSeconds >= 1, JSON.stringify(body))
})

test('a run in a sandbox costs what its runner measured, and calls no model when its budget is spent', async (t) => {
  const priced = { model: 'openai/gpt-5', tools: ['calculate'], limits: { maxCostCents: 1 } }
  const cluster = await setup(t, 'four', {}, priced)
  cluster.model.next({ toolCalls: [{ name: 'calculate', arguments: { expression: '6*7' } }] }, { text: 'Too dear.' })
  // About 10,000 tokens of 125 cents a million.
  const run = await over(cluster, await submit(cluster, 'word '.repeat(8_000)))
  assert.equal(run.status, 'error')
  const [usage, ...more] = run.events.filter(({ type }) => type === 'usage')
  assert.deepEqual([usage!['model'], usage!['costCents'], more], ['openai/gpt-5', undefined, []])
  const { body } = await cluster.api<Run & { costCents: number }>('GET', `/api/runs/${run.runId}`)
  const [input, output] = [Number(usage!['inputTokens']), Number(usage!['outputTokens'])]
  assert.equal(body.costCents, (input * 125 + output * 1_000) / 1e6)
  assert.ok(body.costCents > 1)
  assert.equal(cluster.model.requests.length, 1, 'the second call reached no model')
})

test('a conversation for which its runner has no room stays in its sandbox, and a session that has no room is refused', async (t) => {
  const max = 8_000
  const cluster = await setup(t, 'single', { AGENT_ORC_LIMIT_STATE_BYTES: String(max) })
  const used = async (): Promise<number> => {
    type Shown = { limits: { name: string; used: number }[] }
    return (await cluster.api<Shown>('GET', '/api/limits')).body.limits.find(({ name }) => name === 'stateBytes')!.used
  }
  const { sessionId } = await say(cluster, `the word is marmalade ${'x'.repeat(5_000)}`, 'noted')
  await eventually('its copy is counted', async () => (await used()) > 5_000)
  await say(cluster, `and ${'y'.repeat(5_000)}`, 'noted', sessionId)
  await eventually(
    'a copy that is too large is not taken, and none stands in for it',
    async () => (await used()) < 3_000,
  )
  const { told } = await say(cluster, 'what is it?', 'marmalade', sessionId)
  assert.match(told.join('\n'), /the word is marmalade[^]*and yyy[^]*what is it/, 'its sandbox still has all of it')
  const large = { name: 'large', model: 'openai/stand-in', instructions: 'z'.repeat(9_000) }
  assert.equal((await cluster.api('POST', '/api/profiles', large)).status, 201)
  const refused = await cluster.api<{ error: string; limit: string; max: number }>('POST', '/api/runs', {
    profile: 'large',
    prompt: 'x',
  })
  assert.deepEqual(
    [refused.status, refused.body.error, refused.body.limit, refused.body.max],
    [429, 'limit_reached', 'stateBytes', max],
  )
})
