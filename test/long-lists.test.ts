import assert from 'node:assert/strict'
import { once } from 'node:events'
import { get, type IncomingMessage, type ServerResponse } from 'node:http'
import { test, type TestContext } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { newId } from '#contracts/ids'
import { startConductor } from './conductor.ts'
import { watchReads } from './reads.ts'

const megabyte = 1024 * 1024

/** A conductor that is called over a network, and a tenant with some runs of large prompts. */
async function startWith(t: TestContext, runs: number, promptChars: number) {
  const conductor = await startConductor(t)
  const { app, database } = conductor
  const url = await app.listen({ port: 0, host: '127.0.0.1' })
  const { token } = await conductor.issue('acme', 'owner')
  const other = await conductor.issue('globex', 'owner')
  await database.batch('acme', [
    {
      text: `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, started_at, finished_at)
        SELECT 'acme', 'run' || n, 's', 'p', 'ok', repeat('é', $1::int), 'x', 1, now() - n * interval '1 second', now()
        FROM generate_series(1, $2::int) n`,
      values: [promptChars, runs],
    },
  ])
  const headers = { authorization: `Bearer ${token}` }
  return { ...conductor, url, token, headers, other: { authorization: `Bearer ${other.token}` } }
}

test('300 prompts of a megabyte are listed without being read', async (t) => {
  const { url, headers, database } = await startWith(t, 300, 500_000)
  const reads = watchReads(t, database)
  const reply = await fetch(`${url}/api/runs`, { headers })
  const runs = (await reply.json()) as { runId: string; subTask: { prompt: string }; truncated: string[] }[]
  assert.equal(reply.headers.get('x-total-count'), '300')
  assert.deepEqual(
    runs.map(({ runId }) => runId),
    Array.from({ length: 300 }, (_, i) => `run${i + 1}`),
  )
  assert.ok(runs.every(({ subTask, truncated }) => subTask.prompt.length === 1_000 && truncated[0] === 'prompt'))
  assert.ok(reads.largest.bytes < megabyte, `a read of ${reads.largest.bytes} bytes`)
})

test('a list that nobody reads waits, without a connection; others are served, and it goes on where it was', async (t) => {
  const { app, url, headers, other, database } = await startWith(t, 10_000, 2_000)
  const answers: ServerResponse[] = []
  app.server.on('request', (_: IncomingMessage, answer: ServerResponse) => answers.push(answer))
  const reads = watchReads(t, database)
  let lists = 0
  reads.before = (text) => void (text.includes('FROM runs') && lists++)
  const request = get(`${url}/api/runs`, { headers })
  const [reply] = (await once(request, 'response')) as [IncomingMessage]
  reply.pause()
  // Full is full: what the sockets between take is taken, and nothing more is read.
  for (let still = 0; still < 200; await setImmediate()) still = answers[0]!.writableNeedDrain ? still + 1 : 0
  const before = lists
  assert.ok(before < 10_000 / 64, `${before} reads, which are all`)
  assert.equal(reads.underWay, 0)
  const [[held]] = await database.systemBatch<[{ count: number }[]]>([
    {
      text: `SELECT count(*)::int AS count FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'`,
    },
  ])
  assert.equal(held!.count, 0)
  assert.equal((await fetch(`${url}/api/runs`, { headers: other })).status, 200)
  assert.equal(lists, before + 1)
  let text = ''
  reply.setEncoding('utf8').on('data', (part: string) => (text += part))
  reply.resume()
  await once(reply, 'end')
  const runs = JSON.parse(text) as { runId: string }[]
  assert.equal(new Set(runs.map(({ runId }) => runId)).size, 10_000)
  assert.ok(reads.largest.bytes < megabyte, `a read of ${reads.largest.bytes} bytes`)
})

test('a list that cannot be read to its end breaks off; one that cannot be begun is refused', async (t) => {
  const { url, headers, database } = await startWith(t, 200, 10)
  const reads = watchReads(t, database)
  const failFrom = (nth: number): void => {
    let left = nth
    reads.before = (text) => {
      if (text.includes('FROM runs') && --left <= 0) throw new Error('the database is away')
    }
  }
  failFrom(2)
  const reply = await fetch(`${url}/api/runs`, { headers })
  assert.equal(reply.status, 200)
  await assert.rejects(reply.text())
  failFrom(1)
  const refused = await fetch(`${url}/api/runs`, { headers })
  assert.equal(refused.status, 500)
  assert.equal(((await refused.json()) as { error: string }).error, 'internal')
})

test('a run is answered with its whole log, which is read by and by', async (t) => {
  const { url, headers, database } = await startWith(t, 1, 10)
  const line = `'{"type":"assistant","text":"' || repeat('é', 50000) || '","seq":' || n || E'}\\n'`
  await database.batch('acme', [
    {
      text: `INSERT INTO run_events (tenant_id, run_id, first_seq, count, lines)
        SELECT 'acme', 'run1', n, 1, convert_to(CASE n WHEN 7 THEN E'no event\\n' ELSE ${line} END, 'UTF8') FROM generate_series(1, 120) n`,
    },
  ])
  const reads = watchReads(t, database)
  const run = (await (await fetch(`${url}/api/runs/run1`, { headers })).json()) as Run
  assert.equal(run.subTask.prompt, 'é'.repeat(10))
  assert.deepEqual(
    run.events.map((event) => event?.seq),
    Array.from({ length: 120 }, (_, i) => (i === 6 ? undefined : i + 1)),
  )
  // In this form a byte has four characters.
  assert.ok(reads.largest.bytes < 5 * megabyte, `a read of ${reads.largest.bytes} bytes`)
  const head = await fetch(`${url}/api/runs/run1`, { headers, method: 'HEAD' })
  assert.deepEqual([head.status, await head.text()], [200, ''])
  assert.equal((await fetch(`${url}/api/runs/none`, { headers })).status, 404)
})

interface Run {
  readonly subTask: { readonly prompt: string }
  readonly events: ({ readonly seq: number } | null)[]
}

test('a conversation is answered with whole messages, which are read by and by', async (t) => {
  const { call, token, gateway, database } = await startWith(t, 0, 0)
  await call(token, 'POST', '/api/profiles', { name: 'p' })
  const agent = (await call(token, 'POST', '/api/profiles/p/publish')).json<{ id: string }>()
  const key = (await call(token, 'POST', '/api/profiles/p/keys', { label: 'x' })).json<{ token: string }>()
  const id = newId('conv')
  await database.batch('acme', [
    { text: `INSERT INTO conversations (tenant_id, id, published_id) VALUES ('acme', $1, $2)`, values: [id, agent.id] },
    {
      text: `INSERT INTO messages (tenant_id, conversation_id, public_run_id, role, content, failed)
        SELECT 'acme', $1, 'prun_' || n, 'user', n || repeat('é', 250000), n % 10 = 0 FROM generate_series(1, 60) n`,
      values: [id],
    },
  ])
  const reads = watchReads(t, database)
  const ask = async (query: string) => {
    const headers = { authorization: `Bearer ${key.token}` }
    const reply = await gateway.inject({ url: `/v1/chat/acme/p/conversations/${id}${query}`, headers })
    const history = reply.json<{ conversation_id: string; messages: { content: string }[] }>()
    assert.equal(history.conversation_id, id)
    assert.ok(history.messages.every(({ content }) => content.endsWith('é'.repeat(250_000))))
    return history.messages.map(({ content }) => parseInt(content))
  }
  const numbers = Array.from({ length: 60 }, (_, i) => i + 1)
  const answered = numbers.filter((n) => n % 10 !== 0)
  assert.deepEqual(await ask(''), answered.slice(-50))
  assert.deepEqual(await ask('?limit=12&include=errors'), numbers.slice(-12))
  assert.deepEqual(await ask('?limit=1'), [59])
  assert.ok(reads.largest.bytes < 2 * megabyte, `a read of ${reads.largest.bytes} bytes`)
})

test('rows that may be large are weighed: keys, deliveries of webhooks and entries of the MCP catalog are listed in parts', async (t) => {
  const { url, headers, database } = await startWith(t, 0, 0)
  const insert = [
    `INSERT INTO tenant_api_keys (tenant_id, id, label, role, key_hash, created_by, mcp_tool_permissions)
     SELECT 'acme', 'k' || n, 'l', 'member', decode(md5(n::text), 'hex'), 'test', jsonb_build_object('a', jsonb_build_array(repeat('x', 16000))) FROM generate_series(1, 200) n`,
    `INSERT INTO webhook_deliveries (tenant_id, id, url, body, state)
     SELECT 'acme', 'm' || n, 'https://a.example', json_build_object('type', 't' || n, 'data', repeat('x', 64000)), 'dead' FROM generate_series(1, 100) n`,
    `INSERT INTO mcp_entries (tenant_id, name, active, entry)
     SELECT 'acme', 'e' || n, true, jsonb_build_object('url', 'https://a.example', 'description', repeat('x', 32000)) FROM generate_series(1, 100) n`,
  ]
  await database.batch(
    'acme',
    insert.map((text) => ({ text })),
  )
  const lists = {
    '/api/api-keys': [200, 'k'],
    '/api/webhooks/deliveries': [100, 'm'],
    '/api/mcp/catalog': [100, 'e'],
  } as const
  for (const [path, [count, first]] of Object.entries(lists)) {
    const reads = watchReads(t, database)
    const reply = await fetch(`${url}${path}`, { headers })
    const items = (await reply.json()) as { id?: string; name?: string }[]
    const names = items.map(({ id, name }) => id ?? name).filter((name) => new RegExp(`^${first}\\d+$`).test(name!))
    assert.equal(new Set(names).size, count, path)
    assert.equal(reply.headers.get('x-total-count'), String(items.length), path)
    assert.ok(reads.largest.bytes < 1.5 * megabyte, `${path}: a read of ${reads.largest.bytes} bytes`)
  }
})
