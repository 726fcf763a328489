import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { sqlState } from '#contracts/database'
import type { Profile } from '#contracts/profiles'
import type { FinishRun } from '#contracts/run-store'
import { readOnceGrown } from './pages.ts'
import { openStores } from './stores.ts'

const tenantId = 'acme'
const profile = { name: 'p', runtime: 'general', limits: {} } as Profile
const chatOf = (id: string) => ({
  publicRunId: `prun-${id}`,
  conversationId: `conv-${id}`,
  publishedId: 'pub-1',
  continued: false,
})

async function storeWithChats(t: TestContext) {
  const { db, open } = await openStores(t)
  const store = await open()
  return {
    db,
    store,
    async chat(id: string, how: Partial<FinishRun>): Promise<void> {
      const task = { profile: 'p', prompt: 'Hello', chat: chatOf(id) }
      const started = await store.start({
        tenantId,
        runId: `run-${id}`,
        sessionId: `sess-${id}`,
        task,
        create: { profile },
      })
      if (started.kind !== 'started') assert.fail(started.kind)
      const { claim } = started
      assert.ok(await store.finish({ claim, status: 'ok', sessionStatus: 'idle', tail: undefined, ...how }))
    },
  }
}

test('the answer of a chat is stored once, with its messages, and every summary of its run shows it', async (t) => {
  const { db, store, chat } = await storeWithChats(t)
  await chat('1', { result: 'Good day.' })
  await chat('2', {
    status: 'error',
    sessionStatus: 'errored',
    result: 'Good',
    error: { code: 'timeout', message: 'Late.' },
  })
  const stored = await db.unit<{ result: string | null }>(tenantId, {
    text: 'SELECT result FROM runs WHERE tenant_id = $1 ORDER BY id',
    values: [tenantId],
  })
  assert.deepEqual(stored, [{ result: null }, { result: 'Good' }], 'of a chat that failed the messages tell only that')
  const { items: runs } = await store.listRuns(tenantId, {})
  assert.deepEqual(
    new Map(runs.map(({ runId, result }) => [runId, result])),
    new Map([
      ['run-2', 'Good'],
      ['run-1', 'Good day.'],
    ]),
  )
  assert.equal((await store.findRun(tenantId, 'run-1'))?.result, 'Good day.')
})

test('a conversation is restored from reads of some megabytes, the newest run first', async (t) => {
  const { db, store } = await storeWithChats(t)
  const task = { profile: 'p', prompt: 'Hello' }
  const started = await store.start({ tenantId, runId: 'now', sessionId: 's', task, create: { profile } })
  assert.ok(started.kind === 'started')
  const text = `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, input, claim_owner, claim_epoch, ordinal, started_at, finished_at)
    SELECT 'acme', 'run' || n, 's', 'p', 'ok', repeat('é', 400000), to_json(repeat('x', n % 10 * 200000)), 'x', 1, n,
      now() - n * interval '1 second', now() FROM generate_series(1, 40) n`
  await db.batch(tenantId, [{ text }])
  const read: string[] = []
  for await (const page of store.pastRuns(started.claim)) {
    const bytes = page.map(({ prompt, input }) => Buffer.byteLength(prompt) + JSON.stringify(input).length)
    const sum = bytes.reduce((a, b) => a + b)
    assert.ok(sum < 4.5 * 1024 * 1024, `a read of ${page.length} runs is ${sum} bytes`)
    read.push(...page.map(({ runId }) => runId))
  }
  assert.deepEqual(
    read,
    Array.from({ length: 40 }, (_, i) => `run${i + 1}`),
  )
})

test('what a conversation has said is found by keys, with plans from when its tenant had one run as well', async (t) => {
  const { db, store, chat } = await storeWithChats(t)
  await chat('1', { result: 'Good day.' })
  const { mock } = t.mock.method(db, 'batch')
  const claim = { tenantId, runId: 'run-2', sessionId: 'sess-1', epoch: 2 }
  for (const past of [claim, { ...claim, publicRunId: 'prun-1' }]) {
    for await (const [run] of store.pastRuns(past)) assert.equal(run?.runId, 'run-1')
  }
  const sent = mock.calls.flatMap(({ arguments: [, statements] }) => statements)
  assert.equal(sent.length, 6)
  const grown = [
    `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, ordinal, finished_at)
     SELECT 'acme', 'r' || n, 's' || n, 'p', 'ok', 'x', 'x', 1, 1, now() FROM generate_series(1, 3000) n`,
    `INSERT INTO public_runs (tenant_id, id, published_id, conversation_id, run_id, status, finished_at)
     SELECT 'acme', 'p' || n, 'pub-1', 'c' || n, 'r' || n, 'ok', now() FROM generate_series(1, 3000) n`,
    `INSERT INTO messages (tenant_id, conversation_id, public_run_id, role, content)
     SELECT 'acme', 'c' || n, 'p' || n, 'user', 'x' FROM generate_series(1, 3000) n`,
  ]
  for (const { name, pages } of await readOnceGrown(db, tenantId, sent, grown))
    assert.ok(pages < 60, `${name}: ${pages}`)
})

test('no statement leaves a run, a session or a public run in a state that contradicts itself', async (t) => {
  const { db, chat } = await storeWithChats(t)
  await chat('1', { result: 'x' })
  const contradictions = [
    `UPDATE runs SET finished_at = NULL WHERE tenant_id = $1`,
    `UPDATE runs SET status = 'running' WHERE tenant_id = $1`,
    `UPDATE runs SET status = 'done' WHERE tenant_id = $1`,
    `UPDATE sessions SET status = 'running' WHERE tenant_id = $1`,
    `UPDATE sessions SET claim_run = 'run-1' WHERE tenant_id = $1`,
    `UPDATE sessions SET status = 'asleep' WHERE tenant_id = $1`,
    `UPDATE public_runs SET status = 'running' WHERE tenant_id = $1`,
    `UPDATE public_runs SET finished_at = NULL WHERE tenant_id = $1`,
    `INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines) VALUES ($1, 'run-1', 1, 0, '')`,
  ]
  for (const text of contradictions) {
    await assert.rejects(db.unit(tenantId, { text, values: [tenantId] }), (error) => sqlState(error) === '42501', text)
  }
})

test('a chat whose caller was only remembered begins while its key and its agent are what they were', async (t) => {
  const { db, store } = await storeWithChats(t)
  const change = (text: string) => db.unit<{ revision: string }>(tenantId, { text, values: [tenantId] })
  await change(`INSERT INTO profiles (tenant_id, name, id, document) VALUES ($1, 'p', 'prof-1', '{}')`)
  await change(`INSERT INTO published_agents (tenant_id, id, profile_name, slug, rate_limit_rpm, sync_max_duration_seconds)
                VALUES ($1, 'pub-1', 'p', 'p', 10, 10)`)
  await change(`INSERT INTO published_agent_keys (tenant_id, id, published_id, label, key_hash)
                VALUES ($1, 'key-1', 'pub-1', 'test', '\\x00')`)
  const revision = async () =>
    (await change(`SELECT xmin::text AS revision FROM published_agents WHERE tenant_id = $1`))[0]!.revision
  let runs = 0
  const begin = async (admission: { keyId: string; revision: string }, continues?: number) => {
    const id = String(++runs)
    const chat = {
      ...chatOf(id),
      admission,
      ...(continues ? { conversationId: `conv-${continues}`, continued: true } : {}),
    }
    const order = continues ? { sessionId: '' } : { sessionId: `sess-${id}`, create: { profile } }
    const started = await store.start({
      tenantId,
      runId: `run-${id}`,
      task: { profile: 'p', prompt: 'Hi', chat },
      ...order,
    })
    if (started.kind !== 'started') return started.kind
    await store.finish({ claim: started.claim, status: 'ok', sessionStatus: 'idle', tail: undefined, result: 'x' })
    return started.kind
  }
  const known = { keyId: 'key-1', revision: await revision() }
  assert.equal(await begin(known), 'started')
  assert.equal(await begin(known, 1), 'started', 'in a conversation that goes on')
  assert.equal(await begin({ ...known, keyId: 'key-2' }), 'stale_admission', 'another key')

  await change(`UPDATE published_agents SET webhook_url = 'https://x.example' WHERE tenant_id = $1`)
  assert.equal(await begin(known), 'stale_admission')
  assert.equal(await begin(known, 1), 'stale_admission')
  const anew = { ...known, revision: await revision() }
  assert.equal(await begin(anew), 'started')

  await change(`UPDATE published_agent_keys SET revoked_at = now() WHERE tenant_id = $1`)
  assert.equal(await begin(anew), 'stale_admission')
  await change(`UPDATE published_agent_keys SET revoked_at = NULL, expires_at = now() WHERE tenant_id = $1`)
  assert.equal(await begin(anew), 'stale_admission')
  await change(`UPDATE published_agent_keys SET expires_at = now() + interval '1 hour' WHERE tenant_id = $1`)
  assert.equal(await begin(anew, 1), 'started')
  await db.systemBatch([{ text: `UPDATE tenants SET deleted_at = now() WHERE id = '${tenantId}'` }])
  assert.equal(await begin(anew, 1), 'stale_admission')
})

test('a session is as old as its first run, and its last prompt is cut between characters', async (t) => {
  const { db, open } = await openStores(t)
  const store = await open()
  const words = 'x'.repeat(3_999)
  const task = { profile: 'p', prompt: `${words}\u{1F600} and more` }
  await store.start({ tenantId, runId: 'r1', sessionId: 's1', task, create: { profile } })
  const text = `SELECT s.created_at = r.started_at AND s.last_used_at = r.started_at AS "sameTime", substr(s.last_prompt, 3999) AS "end"
    FROM sessions s JOIN runs r ON r.tenant_id = s.tenant_id AND r.session_id = s.id WHERE s.tenant_id = $1`
  assert.deepEqual(await db.unit(tenantId, { text, values: [tenantId] }), [{ sameTime: true, end: 'x\u{1F600}' }])
})

test('a run is found by its end user however it began, as long as it exists, and by an id of any length', async (t) => {
  const { open, db } = await openStores(t)
  const store = await open()
  const long = `${'ä'.repeat(10_000)}\0`
  const of = (runId: string, endUser: string | undefined, more: object = {}) => ({
    tenantId,
    runId,
    sessionId: 'sess-1',
    task: {
      profile: 'p',
      prompt: 'x',
      ...(endUser === undefined ? {} : { metadata: { end_user_id: endUser } }),
      ...more,
    },
  })
  const started = async (run: Parameters<typeof store.start>[0]) => {
    const outcome = await store.start(run)
    return outcome.kind === 'started' ? outcome.claim : assert.fail(outcome.kind)
  }
  const end = (claim: FinishRun['claim']) =>
    store.finish({ claim, status: 'ok', sessionStatus: 'idle', tail: undefined })
  await end(await started({ ...of('new', 'ann'), create: { profile } }))
  await end(await started(of('nobody', undefined)))
  const claim = await started(of('again', long))
  assert.equal((await store.enqueue({ ...of('line', 'bob'), interrupt: false })).kind, 'queued')
  const chat = { ...chatOf('c'), endUserId: 'carl' }
  await started({ ...of('chat', undefined, { chat }), sessionId: 'sess-c', create: { profile } })
  const people = async () =>
    db.unit(tenantId, {
      text: `SELECT p.run_id AS run, p.person = sha256(convert_to(r.end_user_id, 'UTF8')) AS same, left(r.end_user_id, 4) AS who
             FROM run_people p JOIN runs r ON r.id = p.run_id ORDER BY 1`,
    })
  const named = (run: string, who: string) => ({ run, same: true, who })
  const others = [named('chat', 'carl'), named('line', 'bob'), named('new', 'ann')]
  assert.deepEqual(await people(), [named('again', 'ääää'), ...others])
  await store.discard(claim)
  assert.deepEqual(await people(), others)
})
