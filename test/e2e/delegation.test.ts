import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chat } from './client.ts'
import { type Cluster, forms, startCluster } from './cluster.ts'

interface Run {
  readonly runId: string
  readonly status: string
  readonly result?: string
  readonly parent?: { readonly runId: string; readonly depth: number }
  readonly subTask: { readonly profile: string; readonly prompt: string }
  readonly events: readonly Record<string, unknown>[]
}

const delegate = (profile: string, prompt = 'Do it.') => ({
  toolCalls: [{ id: 'call_1', name: 'delegate', arguments: { profile, prompt } }],
})

const depthOf = ({ parent }: Run): number => parent?.depth ?? 0

const runsOf = async (cluster: Cluster, query: string): Promise<Run[]> =>
  (await cluster.api<Run[]>('GET', `/api/runs?${query}`)).body

for (const form of forms) {
  test(`${form}: an agent gives a task to another one; it is a run of its own, and the log of the parent tells of it`, async (t) => {
    const cluster = await startCluster(t, form)
    const lead = await cluster.agent('lead', { tools: ['delegate'] })
    await cluster.agent('helper')
    cluster.model.next(
      delegate('helper', 'What is the word?'),
      { text: 'The word is marmalade.' },
      { text: 'It said marmalade.' },
    )
    const reply = await chat(lead, { message: 'Ask the helper for the word.' })
    assert.deepEqual([reply.status, reply.body['message']], [200, 'It said marmalade.'])

    const [parent] = await runsOf(cluster, 'profile=lead')
    const [child] = await runsOf(cluster, `parent=${parent!.runId}`)
    assert.deepEqual(
      [child!.status, child!.result, child!.subTask.profile, child!.subTask.prompt, child!.parent],
      [
        'ok',
        'The word is marmalade.',
        'helper',
        'What is the word?',
        { runId: parent!.runId, rootId: parent!.runId, depth: 1, awaits: true },
      ],
    )
    const { events } = (await cluster.api<Run>('GET', `/api/runs/${parent!.runId}`)).body
    assert.deepEqual(
      events.map(({ seq }) => seq),
      events.map((_, i) => i + 1),
      'what the runner puts in leaves no gap',
    )
    const told = events.flatMap(({ delegation }) => (delegation === undefined ? [] : [delegation]))
    const id = (told[0] as { id: string }).id
    assert.deepEqual(told, [
      { id, runId: child!.runId, profile: 'helper', state: 'started' },
      { id, runId: child!.runId, profile: 'helper', state: 'ended', ok: true, status: 'ok' },
    ])
    assert.equal(events.find(({ type }) => type === 'tool_result')!['content'], 'The word is marmalade.')
    // The helper was sent its task and nothing of the conversation.
    const heard = JSON.stringify(cluster.model.requests[1]!.body.messages)
    assert.match(heard, /What is the word/)
    assert.doesNotMatch(heard, /Ask the helper/)
  })
}

test('delegations end at the depth that a runner allows, if that is less than the limit of the tenant', async (t) => {
  const cluster = await startCluster(t, 'single', { env: { AGENT_ORC_DELEGATION_DEPTH: '2' } })
  const lead = await cluster.agent('lead', { tools: ['delegate'] })
  const deeper = delegate('lead')
  cluster.model.next(deeper, deeper, deeper, { text: 'two' }, { text: 'one' }, { text: 'none' })
  const reply = await chat(lead, { message: 'Go down.' })
  assert.equal(reply.body['message'], 'none')
  const runs = await runsOf(cluster, 'profile=lead')
  assert.deepEqual(runs.map((run) => [depthOf(run), run.result]).toSorted(), [
    [0, 'none'],
    [1, 'one'],
    [2, 'two'],
  ])
  const deepest = (await cluster.api<Run>('GET', `/api/runs/${runs.find((run) => depthOf(run) === 2)!.runId}`)).body
  assert.match(String(deepest.events.find(({ type }) => type === 'tool_result')!['content']), /2 delegations deep/)
})

test('a tenant whose limit is more than the default delegates as deep as the limit says, and no deeper', async (t) => {
  const cluster = await startCluster(t, 'single')
  assert.equal((await cluster.api('PATCH', '/api/tenants/default', { limits: { delegationDepth: 4 } })).status, 200)
  const lead = await cluster.agent('lead', { tools: ['delegate'] })
  const deeper = Array.from({ length: 5 }, () => delegate('lead'))
  const answers = ['four', 'three', 'two', 'one', 'none']
  cluster.model.next(...deeper, ...answers.map((text) => ({ text })))
  assert.equal((await chat(lead, { message: 'Go down.' })).body['message'], 'none')
  const runs = (await runsOf(cluster, 'profile=lead')).toSorted((a, b) => depthOf(a) - depthOf(b))
  assert.deepEqual(
    runs.map((run) => [depthOf(run), run.result]),
    answers.toReversed().map((text, depth) => [depth, text]),
  )
  const { events } = (await cluster.api<Run>('GET', `/api/runs/${runs.at(-1)!.runId}`)).body
  assert.match(String(events.find(({ type }) => type === 'tool_result')!['content']), /limit delegationDepth, 4/)
})

test('a foreign or unknown profile is the same to an agent that delegates, and cancelling ends the child', async (t) => {
  const cluster = await startCluster(t, 'single')
  const lead = await cluster.agent('lead', { tools: ['delegate'] })
  await cluster.agent('slow')
  cluster.model.next(delegate('somebody-elses'), { text: 'There is none.' })
  assert.equal((await chat(lead, { message: 'Try.' })).body['message'], 'There is none.')

  cluster.model.next(delegate('slow'), { text: 'working', hangAfter: 1 })
  await cluster.api('POST', '/api/runs', { id: 'parent', profile: 'lead', prompt: 'Wait for it.' })
  while ((await runsOf(cluster, 'parent=parent')).length === 0) await new Promise((go) => setTimeout(go, 20))
  await cluster.api('DELETE', '/api/runs/parent')
  const child = async (): Promise<Run> => (await runsOf(cluster, 'parent=parent'))[0]!
  while ((await child()).status === 'running') await new Promise((go) => setTimeout(go, 20))
  assert.equal((await child()).status, 'cancelled')
})
