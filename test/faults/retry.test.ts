import assert from 'node:assert/strict'
import { test } from 'node:test'
import { eventually } from '../e2e/cluster.ts'
import { type Conductor, profile, startOwners } from './owners.ts'

interface Run {
  readonly runId: string
  readonly sessionId: string
  readonly status: string
  readonly attempt: number
  readonly result?: string
  readonly events: readonly { readonly seq: number; readonly type: string; readonly text?: string }[]
}

/** An answer that takes longer than a conductor's lease. */
const words = Array.from({ length: 40 }, (_, i) => `w${i}`).join(' ')
const slowly = { text: words, delayMs: 200 }

const retried = { ...profile, onCrash: 'retry' }
const run = async (conductor: Conductor, id: string): Promise<Run> =>
  (await conductor.api<Run>('GET', `/api/runs/${id}`)).body

function assertWhole({ status, result, events }: Run): void {
  assert.deepEqual([status, result], ['ok', words])
  assert.deepEqual(
    events.map(({ seq }) => seq),
    events.map((_, i) => i + 1),
  )
  assert.equal(events.filter(({ type }) => type === 'result' || type === 'error').length, 1)
}

test('runs of a conductor that is gone go on with another one', async (t) => {
  // Longer than a busy machine may keep a healthy conductor from renewing.
  const owners = await startOwners(t, { lease: '5s' })
  if (!owners) return
  const [a, b] = [await owners.conductor(), await owners.conductor()]
  assert.equal((await a.api('POST', '/api/profiles', retried)).status, 201)
  await t.test(
    'R3: a conductor frozen past its lease loses its run to another one, which reads it on; the first changes nothing when it wakes',
    async () => {
      owners.model.next(slowly)
      const begun = await a.api<Run>('POST', '/api/runs', { id: 'held', profile: 'writer', prompt: 'go' })
      assert.equal(begun.status, 202)
      await eventually('its first words are on record', async () =>
        (await run(b, 'held')).events.some((event) => event.text !== undefined),
      )
      a.signal('SIGSTOP')
      const ended = await eventually('the other conductor goes on with it', async () => {
        const found = await run(b, 'held')
        return found.status === 'running' ? undefined : found
      })
      assertWhole(ended)
      assert.equal(ended.attempt, 1, 'the runner still had it: nothing was begun again')
      assert.equal(owners.model.requests.length, 1)
      a.signal('SIGCONT')
      await eventually('the frozen process knows that it was declared dead', async () =>
        a.process.output.join('').includes('this process was declared dead'),
      )
      owners.model.next({ text: 'next' })
      const { sessionId } = begun.body
      await eventually('the session goes on', async () => {
        const reply = await b.api('POST', '/api/runs', { id: 'next', sessionId, profile: 'writer', prompt: 'more' })
        return reply.status === 202
      })
      await eventually('the next run ends', async () => (await run(a, 'next')).status === 'ok')
      for (const conductor of [a, b]) assert.deepEqual(await run(conductor, 'held'), ended)
      assert.deepEqual(
        owners.model.requests.at(-1)!.body.messages.map(({ content }) => content),
        ['Be brief.', 'go', words, 'more'],
      )
    },
  )
  await t.test('R4: 60 runs of a killed conductor go on with the others, each once, and all of them end', async () => {
    const c = await owners.conductor()
    const asked = owners.model.requests.length
    const ids = Array.from({ length: 60 }, (_, i) => `run-${i}`)
    owners.model.next(...ids.map(() => slowly))
    await Promise.all(ids.map((id) => a.api('POST', '/api/runs', { id, profile: 'writer', prompt: 'go' })))
    await eventually('all are under way', async () => owners.model.requests.length === asked + ids.length)
    await a.kill()
    await eventually('all are over', async () => {
      const { body } = await b.api<Run[]>('GET', '/api/runs?status=running')
      return body.length === 0
    })
    for (const id of ids) {
      const ended = await run(c, id)
      assertWhole(ended)
      assert.equal(ended.attempt, 1)
    }
    assert.equal(owners.model.requests.length, asked + ids.length, 'the model was asked once for each')
  })
})
