import assert from 'node:assert/strict'
import { test } from 'node:test'
import pg from 'pg'
import { all, chat, chatStream, resumeStream, terminals, text } from './client.ts'
import { type Agent, type Cluster, eventually, startCluster } from './cluster.ts'

/** Runs one statement as tenant `default`, directly in the database. */
async function sql<Row extends object>(cluster: Cluster, statement: string): Promise<Row[]> {
  const client = new pg.Client({ connectionString: cluster.dsn })
  await client.connect()
  try {
    await client.query("SELECT set_config('app.tenant_id', 'default', false)")
    return (await client.query<Row>(statement)).rows
  } finally {
    await client.end()
  }
}
/** Counts public runs that have not ended. */
const openRuns = async (cluster: Cluster): Promise<number> =>
  (await sql<{ n: number }>(cluster, 'SELECT count(*)::int AS n FROM public_runs WHERE finished_at IS NULL'))[0]!.n

test('the gateway over real processes: any text, repeated requests, kill -9, a conductor that is away', async (t) => {
  const cluster = await startCluster(t, 'four', { apart: ['gateway', 'conductor'] })
  const agent = await cluster.agent('busy')

  await t.test('S4: every character of a model arrives unchanged, however its bytes are cut', async () => {
    const odd =
      'a\rb\nc\r\nd\u2028e\u2029f\u0085g data: x\n\nid: 9\n: h 🦊é\u{10ffff}\ufeff "\\ <' + '\u0001\u001f\u007f'
    for (const sent of [odd, odd.replaceAll(/\s/g, ''), 'nul \0 here']) {
      cluster.model.next({ text: sent })
      const frames = await all(await chatStream(agent, { message: odd }))
      assert.equal(text(frames), sent)
      assert.deepEqual(
        terminals(frames).map(({ event, data }) => [event, data.message]),
        [['done', sent]],
      )
    }
  })

  await t.test(
    'a request repeated with its Idempotency-Key is one run, on the gateway and on the conductor',
    async () => {
      const key = { 'idempotency-key': 'order-1' }
      cluster.model.next({ text: 'Once.' })
      const first = await chat(agent, { message: 'buy' }, key)
      const again = await chat(agent, { message: 'buy' }, key)
      assert.deepEqual([again.status, again.body], [200, first.body])
      assert.equal(again.headers.get('idempotency-replayed'), 'true')
      assert.equal((await chat(agent, { message: 'sell' }, key)).status, 422)
      const issued = await cluster.api<{ token: string }>('POST', '/api/api-keys', { label: 'repeats', role: 'member' })
      const start = async (prompt: string) => {
        const reply = await fetch(`${cluster.conductorUrl}/api/runs`, {
          method: 'POST',
          headers: { authorization: `Bearer ${issued.body.token}`, 'content-type': 'application/json', ...key },
          body: JSON.stringify({ profile: agent.profile, prompt }),
        })
        return { status: reply.status, replayed: reply.headers.get('idempotency-replayed'), body: await reply.text() }
      }
      const run = await start('buy')
      assert.deepEqual(run, { ...run, status: 202, replayed: null })
      assert.deepEqual(await start('buy'), { ...run, replayed: 'true' })
      assert.equal((await start('sell')).status, 422)
      const [count] = await sql<{ n: number }>(cluster, `SELECT count(*)::int AS n FROM runs WHERE prompt = 'buy'`)
      assert.equal(count!.n, 2, 'one of each plane')
    },
  )

  await t.test(
    'R9: after kill -9 of its gateway a request is repeated into the same run: one run, one charge',
    async () => {
      const words = Array.from({ length: 20 }, (_, i) => `w${i}`).join(' ')
      cluster.model.next({ text: words, deltas: 20, delayMs: 50 })
      const key = { 'idempotency-key': 'crash-1' }
      const before = cluster.model.requests.length
      const lost = chat(agent, { message: 'crash' }, key).catch(() => undefined)
      await eventually('the run is under way', async () => cluster.model.requests.length > before)
      await cluster.kill('gateway')
      assert.equal(await lost, undefined)
      await cluster.start('gateway')
      const again = await eventually('the key of the dead gateway is free', async () => {
        const reply = await chat(agent, { message: 'crash' }, key)
        return reply.status === 409 ? undefined : reply
      })
      assert.deepEqual([again.status, again.body.message], [200, words])
      assert.equal(cluster.model.requests.length, before + 1)
      const runs = await sql<{ n: number }>(cluster, `SELECT count(*)::int AS n FROM runs WHERE prompt = 'crash'`)
      assert.equal(runs[0]!.n, 1)
    },
  )

  await t.test('readiness names a conductor that is away, liveness does not mind, and it heals by itself', async () => {
    const ready = async () => {
      const reply = await fetch(`${cluster.gatewayUrl}/readyz`)
      return { status: reply.status, ...((await reply.json()) as { checks: Record<string, string> }) }
    }
    await cluster.kill('conductor')
    const away = await eventually('readiness says so', async () => {
      const answer = await ready()
      return answer.status === 503 ? answer : undefined
    })
    assert.deepEqual(away.checks, { database: 'ok', conductor: 'The conductor cannot be reached.' })
    assert.equal((await fetch(`${cluster.gatewayUrl}/healthz`)).status, 200)
    const refused = await chat(agent, { message: 'anybody?' })
    assert.deepEqual([refused.status, refused.body.error], [502, 'upstream'])
    await cluster.start('conductor')
    await eventually('it is ready again', async () => (await ready()).status === 200)
    assert.equal((await chat(agent, { message: 'there?' })).status, 200)
  })
})

test('O5: SIGTERM with 200 streams: exit 0 within the grace, every stream resumes, every run ends ok', async (t) => {
  const cluster = await startCluster(t, 'four', { apart: ['gateway'] })
  const agent = await cluster.agent('busy')
  const words = Array.from({ length: 12 }, (_, i) => `word${i}`).join(' ')
  const count = 200
  cluster.model.next(...Array.from({ length: count }, () => ({ text: words, delayMs: 800 })))
  const streams = await Promise.all(Array.from({ length: count }, () => chatStream(agent, { message: 'long' })))
  const read = streams.map((stream) => all(stream))
  assert.ok((await openRuns(cluster)) > count / 2, 'most runs are under way')
  const stopping = cluster.stop('gateway')
  const cut = await Promise.all(read)
  await refusesEverything(cluster, agent)
  const { code, ms } = await stopping
  assert.equal(code, 0, cluster.output())
  assert.ok(ms < 25_000, `${ms} ms`)
  assert.ok((await openRuns(cluster)) > 0, 'the runs go on')
  assert.ok(cut.filter((frames) => terminals(frames).length === 0).length > count / 2, 'most streams were cut')
  await cluster.start('gateway')
  const rest = await Promise.all(
    streams.map(async ({ response }, i) => {
      const id = response.headers.get('x-public-run-id')!
      return all(await resumeStream(agent, id, cut[i]!.at(-1)?.id))
    }),
  )
  for (const [i, frames] of rest.entries()) {
    // On a slow machine a few are over before the last has begun.
    if (terminals(cut[i]!).length > 0) continue
    assert.deepEqual(
      terminals(frames).map(({ data }) => data.message),
      [words],
    )
    const seen = text(cut[i]!) + text(frames)
    // The client of a run that was over before it came back is only sent the end.
    assert.ok(text(frames) === '' ? words.startsWith(seen) : seen === words, seen)
  }
  await eventually('every run is ended', async () => (await openRuns(cluster)) === 0)
  const statuses = await sql(cluster, `SELECT status, count(*)::int AS n FROM public_runs GROUP BY status`)
  assert.deepEqual(statuses, [{ status: 'ok', n: count }])
})

/** A gateway that has ended its streams takes nothing new: it answers 503 with Retry-After, or does not answer any more. */
async function refusesEverything(cluster: Cluster, agent: Agent): Promise<void> {
  const answers = [fetch(`${cluster.gatewayUrl}/readyz`), fetch(agent.url, { method: 'POST' })]
  for (const answer of await Promise.allSettled(answers)) {
    if (answer.status === 'rejected') continue
    assert.equal(answer.value.status, 503)
    assert.match(answer.value.headers.get('retry-after') ?? '', /^\d+$/)
  }
}
