import assert from 'node:assert/strict'
import { test } from 'node:test'
import { chat } from './client.ts'
import { type Cluster, forms, startCluster } from './cluster.ts'

const call = (name: string, input: object) => ({ toolCalls: [{ id: `call_${name}`, name, arguments: input }] })
const tools = ['memory_search', 'memory_save', 'memory_forget']
const fact = 'Ann prefers window seats on planes.'
const question = 'Which seat does Ann want on the plane, a window one?'

/** What the model was told last, and how often the fact is in it. */
function told({ model }: Cluster) {
  const text = JSON.stringify(model.requests.at(-1)!.body.messages)
  return { text, facts: text.split('window seats').length - 1 }
}
/** What the last tool call of a profile answered. */
async function answered(cluster: Cluster, profile: string): Promise<string> {
  const [run] = (await cluster.api<{ runId: string }[]>('GET', `/api/runs?profile=${profile}&limit=1`)).body
  const { events } = (await cluster.api<{ events: Record<string, unknown>[] }>('GET', `/api/runs/${run!.runId}`)).body
  assert.deepEqual(
    events.map(({ seq }) => seq),
    events.map((_, i) => i + 1),
  )
  return String(events.findLast(({ type }) => type === 'tool_result')!['content'])
}

for (const form of forms) {
  test(`${form}: what an agent saves is put before the first message of a later conversation, once, and is only its end user's`, async (t) => {
    const cluster = await startCluster(t, form, form === 'four' ? { apart: ['runner'] } : {})
    const agent = await cluster.agent('keeper', { tools })
    const profile = { model: 'openai/stand-in', tools, memory: { inject: 3 } }
    assert.equal((await cluster.api('PUT', '/api/profiles/keeper', profile)).status, 200)
    const { model } = cluster
    const say = async (person: string, message: string, before?: unknown) => {
      const more = before === undefined ? {} : { conversation_id: before }
      const reply = await chat(agent, { message, metadata: { end_user_id: person }, ...more })
      assert.equal(reply.status, 200, JSON.stringify(reply.body))
      return reply.body['conversation_id']
    }

    model.next(call('memory_save', { content: fact }), { text: 'I will remember that.' })
    await say('ann', 'I always take a window seat.')
    const id = /^Remembered as (mem_\w+)\.$/.exec(await answered(cluster, 'keeper'))?.[1]
    assert.ok(id)

    model.next({ text: 'A window seat.' }, { text: 'Yes.' })
    const conversation = await say('ann', question)
    assert.match(told(cluster).text, /<recalled_memories>.*Ann prefers window seats on planes\..*<\/recalled_memories>/)
    const [run] = (await cluster.api<{ subTask: { prompt: string } }[]>('GET', '/api/runs?profile=keeper&limit=1')).body
    assert.equal(run!.subTask.prompt, question, 'what is kept is what was said')
    await say('ann', `Are you sure? ${question}`, conversation)
    assert.equal(told(cluster).facts, 1, 'never the same fact twice in one conversation')
    if (form === 'four') {
      // The runner and what it held are gone: the conversation is restored as it was.
      await cluster.kill('runner')
      await cluster.start('runner')
      model.next({ text: 'Still a window seat.' })
      await say('ann', 'And on the way back?', conversation)
      assert.equal(told(cluster).facts, 1)
    }

    model.next({ text: 'I do not know.' }, call('memory_search', { query: 'window seats of Ann' }), {
      text: 'Nothing.',
    })
    await say('bob', question)
    assert.equal(told(cluster).facts, 0)
    await say('bob', 'Search.')
    assert.equal(await answered(cluster, 'keeper'), 'Nothing is remembered that fits.')
    model.next(call('memory_forget', { id }), { text: 'I cannot.' })
    await say('bob', 'Forget it.')
    assert.equal(await answered(cluster, 'keeper'), 'The profile has no memory of that id.')

    model.next(call('memory_search', { query: 'seats' }), { text: 'Found.' }, call('memory_forget', { id }), {
      text: 'Gone.',
    })
    await say('ann', 'What of seats?')
    assert.match(await answered(cluster, 'keeper'), new RegExp(`^- \\[${id}, \\d{4}-\\d\\d-\\d\\d\\] ${fact}$`))
    await say('ann', 'Forget that.')
    assert.equal(await answered(cluster, 'keeper'), 'It is forgotten.')
    model.next({ text: 'I do not know.' })
    await say('ann', question)
    assert.equal(told(cluster).facts, 0)
  })
}
