import assert from 'node:assert/strict'
import { test } from 'node:test'
import pg from 'pg'
import { eventually } from '../e2e/cluster.ts'
import { type Conductor, type Owners, profile, startOwners } from './owners.ts'

interface Run {
  readonly runId: string
  readonly sessionId: string
  readonly status: string
  readonly events: readonly { readonly seq: number; readonly type: string; readonly code?: string }[]
}

const run = async (conductor: Conductor, id: string): Promise<Run> =>
  (await conductor.api<Run>('GET', `/api/runs/${id}`)).body

const statuses = async (conductor: Conductor): Promise<Record<string, number>> => {
  const { body } = await conductor.api<{ status: string }[]>('GET', '/api/runs')
  const counts: Record<string, number> = {}
  for (const { status } of body) counts[status] = (counts[status] ?? 0) + 1
  return counts
}

function assertEndsOnce({ events, status }: Run): void {
  assert.deepEqual(
    events.map(({ seq }) => seq),
    events.map((_, i) => i + 1),
  )
  assert.equal(events.filter(({ type }) => type === 'result' || type === 'error').length, 1)
  assert.equal(events.at(-1)?.type, status === 'ok' ? 'result' : 'error')
}

/** Waits until two leases and some sweeps are over, by the clock of the database. */
async function waitOutLeases(owners: Owners): Promise<void> {
  const client = new pg.Client({ connectionString: owners.dsn })
  await client.connect()
  await client.query('SELECT pg_sleep(5)')
  await client.end()
}

test('two conductors: one that is slow keeps its claims, one that is frozen loses them', async (t) => {
  const owners = await startOwners(t)
  if (!owners) return
  const [a, b] = [await owners.conductor(), await owners.conductor()]
  assert.equal((await a.api('POST', '/api/profiles', profile)).status, 201)
  await t.test(
    'a conductor whose main thread is blocked for longer than its lease keeps its claims: it is slow, not dead',
    async () => {
      const words = Array.from({ length: 60 }, (_, i) => `w${i}`).join(' ')
      owners.model.next({ text: words, delayMs: 20 })
      assert.equal((await a.api('POST', '/api/runs', { id: 'slow', profile: 'writer', prompt: 'go' })).status, 202)
      await eventually('its first events are on record', async () => (await run(b, 'slow')).events.length > 2)
      const release = await a.block()
      await waitOutLeases(owners)
      assert.equal((await run(b, 'slow')).status, 'running')
      await release()
      const ended = await eventually('it ends', async () => {
        const found = await run(b, 'slow')
        return found.status === 'running' ? undefined : found
      })
      assert.equal(ended.status, 'ok', a.process.output.join(''))
      assertEndsOnce(ended)
      assert.equal(a.process.output.join('').includes('declared dead'), false)
    },
  )
  await t.test(
    'R3: a holder frozen past its lease loses its session to another conductor, and what it writes when it wakes is refused',
    async () => {
      // The frozen conductor's run goes on meanwhile: what the runner sends waits in its socket until it wakes.
      owners.model.next({ text: Array.from({ length: 60 }, (_, i) => `w${i}`).join(' '), delayMs: 50 })
      const begun = await a.api<Run>('POST', '/api/runs', { id: 'held', profile: 'writer', prompt: 'go' })
      assert.equal(begun.status, 202)
      await eventually('its first events are on record', async () => (await run(b, 'held')).events.length > 2)
      a.signal('SIGSTOP')
      const ended = await eventually('the other conductor interrupts it', async () => {
        const found = await run(b, 'held')
        return found.status === 'interrupted' ? found : undefined
      })
      assertEndsOnce(ended)
      owners.model.next({ text: 'mine now' })
      const sessionId = begun.body.sessionId
      const next = await eventually('the session is free for the other conductor', async () => {
        const reply = await b.api<Run>('POST', '/api/runs', {
          id: 'next',
          sessionId,
          profile: 'writer',
          prompt: 'again',
        })
        return reply.status === 202 ? reply : undefined
      })
      assert.equal(next.body.sessionId, sessionId)
      a.signal('SIGCONT')
      await eventually('the new run ends', async () => (await run(b, 'next')).status !== 'running')
      await eventually('the frozen process knows that it was declared dead', async () =>
        a.process.output.join('').includes('this process was declared dead'),
      )
      // Both conductors say the same, and it is what was on record before the frozen one woke up.
      for (const conductor of [a, b]) {
        assert.deepEqual(await run(conductor, 'held'), ended)
        assertEndsOnce(await run(conductor, 'next'))
      }
      owners.model.next({ text: 'back' })
      assert.equal((await a.api('POST', '/api/runs', { id: 'back', profile: 'writer', prompt: 'hello' })).status, 202)
      await eventually(
        'the process that woke up goes on under another id',
        async () => (await run(a, 'back')).status === 'ok',
      )
    },
  )
})

test('a conductor that hangs is taken for dead after a while, and knows it when it comes back', async (t) => {
  const owners = await startOwners(t, { hungAfter: '1s' })
  if (!owners) return
  const [a, b] = [await owners.conductor(), await owners.conductor()]
  assert.equal((await a.api('POST', '/api/profiles', profile)).status, 201)
  owners.model.next({ text: 'never ends', hangAfter: 1 })
  assert.equal((await a.api('POST', '/api/runs', { id: 'stuck', profile: 'writer', prompt: 'go' })).status, 202)
  const release = await a.block()
  await eventually('the other one interrupts its run', async () => (await run(b, 'stuck')).status === 'interrupted')
  assert.match(a.process.output.join(''), /has been hung for 1000 ms/)
  await release()
  await eventually('it knows', async () => a.process.output.join('').includes('this process was declared dead'))
  assertEndsOnce(await run(a, 'stuck'))
})

test('R4: a conductor that boots while another runs 100 runs touches none; when that one is killed all 100 are interrupted', async (t) => {
  const owners = await startOwners(t)
  if (!owners) return
  const a = await owners.conductor()
  assert.equal((await a.api('POST', '/api/profiles', profile)).status, 201)
  owners.model.next(...Array.from({ length: 100 }, () => ({ text: 'never ends', hangAfter: 1 })))
  const started = await Promise.all(
    Array.from({ length: 100 }, (_, i) =>
      a.api('POST', '/api/runs', { id: `run-${i}`, profile: 'writer', prompt: 'go' }),
    ),
  )
  assert.ok(started.every(({ status }) => status === 202))
  const b = await owners.conductor()
  await dieWithOneRun(owners, b)
  assert.deepEqual(await statuses(b), { running: 100, interrupted: 1 })
  await a.kill()
  await eventually('all are interrupted', async () => (await statuses(b))['interrupted'] === 101)
  for (let i = 0; i < 100; i++) assertEndsOnce(await run(b, `run-${i}`))
  const sessions = await b.api<{ status: string }[]>('GET', '/api/sessions')
  assert.ok(sessions.body.every(({ status }) => status !== 'running'))
})

test('O4: conductors whose clocks are ten minutes off in both directions leave each other alone, and a dead one is found all the same', async (t) => {
  const owners = await startOwners(t)
  if (!owners) return
  const [ahead, behind] = [await owners.conductor(clock(600)), await owners.conductor(clock(-600))]
  assert.equal((await ahead.api('POST', '/api/profiles', profile)).status, 201)
  owners.model.next({ text: 'never ends', hangAfter: 1 }, { text: 'never ends', hangAfter: 1 })
  for (const [conductor, id] of [
    [ahead, 'ahead'],
    [behind, 'behind'],
  ] as const) {
    assert.equal((await conductor.api('POST', '/api/runs', { id, profile: 'writer', prompt: 'go' })).status, 202)
  }
  await dieWithOneRun(owners, behind)
  assert.deepEqual(await statuses(behind), { running: 2, interrupted: 1 })
  await ahead.kill()
  await eventually('its run is interrupted', async () => (await run(behind, 'ahead')).status === 'interrupted')
  assert.equal((await run(behind, 'behind')).status, 'running')
})

/** A preload that shifts the clock of the process. */
const clock = (seconds: number): Record<string, string> => {
  const code = `const now = Date.now; const real = Date
    globalThis.Date = class extends real {
      constructor(...given) { given.length === 0 ? super(now() + ${seconds * 1_000}) : super(...given) }
      static now() { return now() + ${seconds * 1_000} }
    }`
  return { NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(code)}` }
}

/** Kills a third conductor and waits until its run is swept: then the others' sweeps have looked at every owner. */
async function dieWithOneRun(owners: Owners, witness: Conductor): Promise<void> {
  const third = await owners.conductor()
  owners.model.next({ text: 'never ends', hangAfter: 1 })
  assert.equal((await third.api('POST', '/api/runs', { id: 'third', profile: 'writer', prompt: 'go' })).status, 202)
  await third.kill()
  await eventually(
    'the run of the dead one is interrupted',
    async () => (await run(witness, 'third')).status === 'interrupted',
  )
}
