import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { FastifyInstance } from 'fastify'
import type { Statement } from '#contracts/database'
import { startConductor } from './conductor.ts'
import { operationsOf } from './openapi-operations.ts'
import { watchReads } from './reads.ts'
import { type Fixtures, urlOf } from './route-table.ts'

/** Rows of each table, written as the tenant `acme`: n is the number of a row. */
const rows: readonly Statement[] = [
  // Before there are profiles: each skill that is written looks for those that name it.
  sql(
    450,
    // Every tenth is described in 200 KB; some were written by a release that did not say how large they are.
    `skill_contents (tenant_id, digest, manifest_bytes, manifest, body, archive)`,
    `'acme', md5(n::text), CASE WHEN n % 10 = 0 THEN 200000 WHEN n % 3 > 0 THEN 1300 END,
     jsonb_build_object('name', 's' || n, 'description', repeat('é', CASE WHEN n % 10 = 0 THEN 100000 ELSE 500 END), 'allowedTools', '[]'::jsonb, 'metadata', '{}'::jsonb,
       'files', jsonb_build_array(jsonb_build_object('path', 'SKILL.md', 'contentType', 'text/markdown', 'sha256', '', 'executable', false, 'bytes', 1))),
     repeat('é', 50000), ''`,
  ),
  sql(450, `skills (tenant_id, name, digest, source)`, `'acme', 's' || n, md5(n::text), 'user'`),
  sql(
    30,
    `profiles (tenant_id, name, id, document)`,
    `'acme', 'p' || n, 'prof_' || n, jsonb_build_object('runtime', 'general', 'model', 'builtin/demo', 'tools', '[]'::jsonb,
       'skills', '[]'::jsonb, 'mcpServers', '[]'::jsonb, 'workerMode', 'static', 'limits', '{}'::jsonb, 'metadata', '{}'::jsonb,
       'instructions', repeat('é', 100000))`,
  ),
  sql(
    450,
    `profile_versions (tenant_id, profile, version, profile_id, document, profile_created_at, created_at)`,
    `'acme', 'p1', 10 + n, 'prof_1', '{}', now(), now()`,
  ),
  sql(150, `pools (tenant_id, id, name)`, `'acme', 'pool_' || n, 'pool' || n`),
  sql(
    450,
    `tenant_api_keys (tenant_id, id, label, role, key_hash, created_by)`,
    `'acme', 'tak_' || n, 'l', 'member', convert_to('key' || n, 'UTF8'), 'test'`,
  ),
  sql(
    30,
    `published_agents (tenant_id, id, profile_name, slug, rate_limit_rpm, sync_max_duration_seconds, allowed_origins)`,
    `'acme', 'pub_' || n, 'p' || n, 'p' || n, 10, 10, ARRAY(SELECT 'https://' || repeat('o', 200) || i FROM generate_series(1, 100) i)`,
  ),
  sql(
    450,
    `published_agent_keys (tenant_id, id, published_id, label, key_hash)`,
    `'acme', 'key_' || n, 'pub_1', 'l', convert_to('key' || n, 'UTF8')`,
  ),
  // Many were written in the same instant: the id decides then.
  sql(
    450,
    `webhook_deliveries (tenant_id, id, run_id, url, state, created_at)`,
    `'acme', 'msg_' || md5(n::text), 'run' || n, 'https://x', 'dead', now() - (n / 100) * interval '1 microsecond'`,
  ),
  sql(
    150,
    `sessions (tenant_id, id, profile, runtime, profile_snapshot, status, last_prompt)`,
    `'acme', 'sess' || n, 'p1', 'general', '{}', 'idle', repeat('é', 4000)`,
  ),
  sql(
    150,
    `runs (tenant_id, id, session_id, profile, status, prompt, result, claim_owner, claim_epoch, started_at, finished_at)`,
    `'acme', 'run' || n, 'sess1', 'p1', 'ok', repeat('é', CASE WHEN n % 3 = 0 THEN 300000 ELSE 10 END),
       repeat('🦉', CASE WHEN n % 3 = 0 THEN 250000 ELSE 10 END), 'x', 1, now() - (n / 50) * interval '1 microsecond', now()`,
  ),
  sql(450, `secrets (tenant_id, name, version)`, `'acme', 'secret' || n, 1`),
  sql(
    450,
    `mcp_entries (tenant_id, name, active, entry)`,
    `'acme', 'server' || n, true, jsonb_build_object('url', 'https://x.example/' || repeat('e', 8000))`,
  ),
  sql(
    450,
    `app_connections (tenant_id, id, provider, toolkit, end_user_id, state, created_at)`,
    `'acme', 'conn_' || n, 'mcp', 'server1', 'person' || n, 'active', now() - n * interval '1 second'`,
  ),
  sql(
    450,
    `secret_versions (tenant_id, name, version, master_key, wrapped_key, ciphertext, created_by)`,
    `'acme', 'secret' || n, 1, 'mk_1', '', '', 'test'`,
  ),
  sql(
    449,
    `secret_versions (tenant_id, name, version, master_key, wrapped_key, ciphertext, created_by)`,
    `'acme', 'secret1', 1 + n, 'mk_1', '', '', 'test'`,
  ),
  sql(
    450,
    `secret_reads (tenant_id, name, reader, version, reads, first_read_at, last_read_at)`,
    `'acme', 'secret1', 'reader' || n, 1, 1, now(), now()`,
  ),
  sql(
    120,
    `audit_entries (tenant_id, id, actor_key, actor_role, action, path)`,
    `'acme', 'aud_' || n, 'k', 'owner', 'profiles.create', '/' || repeat('é', 1000)`,
  ),
  // Some with long questions and answers, and with arguments of 200 KB.
  sql(
    230,
    `approvals (tenant_id, id, run_id, message, arguments, comment, status, on_expiry, created_at)`,
    `'acme', 'appr_' || md5(n::text) || '0', 'run1', repeat('é', n * 20), to_json(repeat('é', CASE WHEN n % 10 = 0 THEN 100000 ELSE 1000 END))::text,
     repeat('é', n * 40), 'approved', 'reject', now() - (n / 100) * interval '1 microsecond'`,
  ),
  sql(
    230,
    `workflow_runs (tenant_id, id, name, settings, input, output, status, unfinished, created_by, created_at)`,
    `'acme', 'wfrun_' || n, 'w', '{}', to_json(repeat('é', 5000))::text, 'null', 3, 0, 'test', now() - (n / 100) * interval '1 microsecond'`,
  ),
  sql(
    450,
    `workflow_definitions (tenant_id, id, name, version)`,
    `'acme', 'wfdef_' || n, repeat('é', 100) || n / 10, 1`,
  ),
  sql(
    450,
    `workflow_versions (tenant_id, definition_id, version, document, created_by)`,
    `'acme', 'wfdef_' || n, 1, json_build_object('name', 'w', 'nodes', repeat('é', 10000))::text, 'test'`,
  ),
  sql(
    90,
    `workflow_schedules (tenant_id, id, document, status, created_by)`,
    `'acme', 'wfsch_' || lpad(n::text, 33, '0'), json_build_object('cron', '0 0 1 1 *', 'profile', 'p1', 'prompt', repeat('é', 30000))::text, 'active', 'test'`,
  ),
  sql(
    230,
    `workflow_firings (tenant_id, schedule_id, at, kind, outcome)`,
    `'acme', 'wfsch_' || lpad('1', 33, '0'), now() - n * interval '1 minute', 'cron', 'skipped'`,
  ),
  sql(
    450,
    `ledger_entries (tenant_id, account, amount, kind, reference, note, created_at)`,
    `'acme', 'usage', n, 'usage', 'r' || n, repeat('é', 1000), now() - (n / 100) * interval '1 microsecond'`,
  ),
  sql(1, `memory_banks (tenant_id, profile)`, `'acme', 'p1'`),
  sql(
    230,
    `memories (tenant_id, id, bank, profile, person, raw_input, content, source, confidence, language, digest, terms, weights, length, bytes, created_at)`,
    `'acme', 'mem_' || n, (SELECT bank FROM memory_banks), 'p1', 0, repeat('é', 10000), repeat('é', n * 20), 'curated', 1, 'en',
     convert_to(n::text, 'UTF8'), '{}', '{}', 1, 20000 + n * 40, now() - (n / 100) * interval '1 microsecond'`,
  ),
]
const schedule = `wfsch_${'1'.padStart(33, '0')}`
const resources: Fixtures = {
  '/api/apps/{toolkit}': 'server1',
  '/api/mcp/catalog/{name}': 'server1',
  '/api/profiles/{name}': 'p1',
  '/api/secrets/{name}': 'secret1',
  '/api/sessions/{id}': 'sess1',
  '/api/workflows/schedules/{id}': schedule,
}
/** What runners, the role file and servers of others say: these read no rows. */
const withoutRows: readonly string[] = [
  '/api/apps',
  '/api/apps/{toolkit}/tools',
  '/api/mcp/catalog/{name}/tools',
  '/api/vfs/leases',
  '/api/worker/leases',
]
/** How many items those have that are no whole list without a limit. Memories of all profiles are in groups then. */
const pagesOf: Readonly<Record<string, number>> = {
  '/api/audit': 100,
  '/api/profiles/p1/memories': 100,
  '/api/memory': 0,
}
/** Every list of rows, as the document of the conductor has them: a new one is among them, and needs rows above. */
async function listsOf(app: FastifyInstance): Promise<string[]> {
  const all = (await operationsOf(app)).filter(
    ({ method, responses }) => method === 'GET' && responses['200']?.headers?.['X-Total-Count'],
  )
  const paths = all.map(({ path }) => path)
  assert.deepEqual(
    withoutRows.filter((path) => !paths.includes(path)),
    [],
  )
  return paths.filter((path) => !withoutRows.includes(path)).map((path) => urlOf({ path }, resources))
}

function sql(count: number, table: string, values: string): Statement {
  return { text: `INSERT INTO ${table} SELECT ${values} FROM generate_series(1, ${count}) n` }
}

const bad = (...parts: string[]): string => Buffer.from(JSON.stringify(parts)).toString('base64url')

test('every list of many rows is the sum of its pages, whichever way it is asked for, and no read is large', async (t) => {
  const conductor = await startConductor(t, { AGENT_ORC_BILLING: 'ledger' })
  const { token } = await conductor.issue('acme', 'owner')
  // One by one: together they take longer than a request may, on a machine that has other work.
  for (const one of rows) await conductor.database.batch('acme', [one])
  await conductor.database.systemBatch([sql(450, 'tenants (id, name)', `'t' || n, 't'`)])
  const reads = watchReads(t, conductor.database)
  const ask = async (url: string) => {
    const reply = await conductor.call(token, 'GET', url)
    assert.equal(reply.statusCode, 200, url)
    const body = reply.json<Item[] | { total: number; tenants?: Item[]; items?: Item[] }>()
    const items = Array.isArray(body) ? body : (body.tenants ?? body.items ?? [])
    return { items, headers: reply.headers, body }
  }
  const refusal = async (url: string) => {
    const reply = await conductor.call(token, 'GET', url)
    return [reply.statusCode, reply.json<{ error: string }>().error]
  }
  const lists = await listsOf(conductor.app)
  for (const path of lists) {
    reads.clear()
    const first = await ask(`${path}?limit=200`)
    const total = Number(first.headers['x-total-count'])
    const paged = [...first.items]
    for (let offset = 200; offset < total; offset += 200)
      paged.push(...(await ask(`${path}?limit=200&offset=${offset}`)).items)
    assert.equal(paged.length, total, path)
    assert.equal(new Set(paged.map(keyOf)).size, total, `${path}: no item is twice in it`)
    assert.ok(total >= 30, `${path}: only ${total} rows`)
    const { items: whole, body, headers } = await ask(path)
    assert.equal(headers['x-total-count'], String(total), path)
    assert.deepEqual(whole, paged.slice(0, pagesOf[path]), path)
    const followed: Item[] = []
    for (let cursor = ''; ;) {
      const { items, headers: told } = await ask(`${path}?limit=70${cursor}`)
      followed.push(...items)
      const next = String(told['x-next-cursor'])
      if (cursor !== '' && told['x-next-cursor'] !== undefined)
        assert.ok(String(told['link']).includes(`limit=70&cursor=${next}>; rel="next"`), path)
      if (told['x-next-cursor'] === undefined) break
      cursor = `&cursor=${next}`
    }
    assert.deepEqual(followed, paged, `${path}: by cursor`)
    for (const cursor of [
      'x',
      bad('nothing'),
      bad('created_at,id<', 'someday', 'x'),
      bad('started_at,id<', '2026-02-30', ''),
    ])
      assert.deepEqual(await refusal(`${path}?limit=2&cursor=${cursor}`), [400, 'invalid_request'], `${path} ${cursor}`)
    if (!Array.isArray(body)) assert.equal(body.total, total)
    assert.ok(reads.largest.rows <= 201, `${path}: a read of ${reads.largest.rows} rows`)
    assert.ok(reads.largest.bytes <= 6 * 1024 * 1024, `${path}: a read of ${reads.largest.bytes} bytes`)
    const head = await conductor.app.inject({
      method: 'HEAD',
      url: path,
      headers: { authorization: `Bearer ${token}` },
    })
    assert.deepEqual([head.statusCode, head.headers['x-total-count'], head.body], [200, String(total), ''], path)
  }
})

type Item = { readonly [field in 'runId' | 'id' | 'name' | 'reader' | 'profile' | 'version' | 'at']?: string | number }
const keyOf = ({ id, runId, name, reader, version, at, profile }: Item): unknown =>
  id ?? runId ?? name ?? reader ?? version ?? at ?? profile

test('a list of runs shows the beginning of each text, cut between characters; the run itself has all', async (t) => {
  const conductor = await startConductor(t)
  const { token } = await conductor.issue('acme', 'owner')
  const metadata = `json_build_object('note', repeat(chr(34), $1::int))`
  const insert = `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, metadata, result, error_code, error_message,
      input_info, claim_owner, claim_epoch, finished_at)
    SELECT 'acme', $2, 's', 'p', 'error', repeat('🦉', $1::int), ${metadata}, repeat('é', $1::int), 'failed', repeat('"', $1::int),
      '{"responseFormat":{"type":"json_schema"}}', 'x', 1, now()`
  for (const [chars, id] of [
    [1_000, 'whole'],
    [1_001, 'longer'],
    [300_000, 'huge'],
  ])
    await conductor.database.batch('acme', [{ text: insert, values: [chars, id] }])
  const list = (await conductor.call(token, 'GET', '/api/runs')).json<Shown[]>()
  const shown = Object.fromEntries(list.map((run) => [run.runId, run]))
  const texts = { prompt: '🦉'.repeat(1_000), result: 'é'.repeat(1_000), message: '"'.repeat(1_000) }
  for (const id of ['whole', 'longer', 'huge']) {
    const { subTask, result, error } = shown[id]!
    assert.deepEqual({ prompt: subTask.prompt, result, message: error.message }, texts, id)
    assert.equal(subTask.responseFormat, undefined)
    const { subTask: full, truncated } = (
      await conductor.call(token, 'GET', `/api/runs/${id}?events=false`)
    ).json<Shown>()
    assert.equal(full.prompt.length, 2 * (id === 'whole' ? 1_000 : id === 'longer' ? 1_001 : 300_000))
    assert.deepEqual([full.responseFormat, truncated], [{ type: 'json_schema' }, undefined])
  }
  assert.deepEqual(
    [shown['whole']!.truncated, shown['whole']!.subTask.metadata],
    [undefined, { note: '"'.repeat(1_000) }],
  )
  assert.deepEqual(shown['longer']!.truncated, ['prompt', 'error', 'result'])
  assert.deepEqual(shown['huge']!.truncated?.toSorted(), ['error', 'metadata', 'prompt', 'result'])
  assert.equal(shown['huge']!.subTask.metadata, undefined)
})

interface Shown {
  readonly runId: string
  readonly result: string
  readonly truncated?: string[]
  readonly error: { readonly message: string }
  readonly subTask: { readonly prompt: string; readonly metadata?: unknown; readonly responseFormat?: unknown }
}

test('a list counts to 10,000, says when there are more, and goes on behind it by cursor', async (t) => {
  const conductor = await startConductor(t)
  const { token } = await conductor.issue('acme', 'owner')
  const run = (from: number, to: number): Statement => ({
    text: `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, started_at, finished_at)
      SELECT 'acme', 'run' || n, 's', 'p', 'ok', 'x', 'x', 1, '2026-01-01Z'::timestamptz - n * interval '1 second', now()
      FROM generate_series($1::int, $2::int) n`,
    values: [from, to],
  })
  const count = async (query = '') => {
    const { headers } = await conductor.call(token, 'GET', `/api/runs?limit=1${query}`)
    return [headers['x-total-count'], headers['x-total-count-exact']]
  }
  await conductor.database.batch('acme', [run(1, 10_000)])
  assert.deepEqual(await count(), ['10000', undefined])
  await conductor.database.batch('acme', [run(10_001, 10_002)])
  assert.deepEqual(await count(), ['10000', 'false'])
  assert.deepEqual(await count('&from=2025-12-31T23:59:58Z'), ['2', undefined])
  const last = await conductor.call(token, 'GET', '/api/runs?limit=2&offset=9999')
  const behind = await conductor.call(token, 'GET', `/api/runs?limit=2&cursor=${String(last.headers['x-next-cursor'])}`)
  const ids = [last, behind].flatMap((reply) => reply.json<{ runId: string }[]>().map(({ runId }) => runId))
  assert.deepEqual(ids, ['run10000', 'run10001', 'run10002'])
  assert.equal(behind.headers['x-next-cursor'], undefined)
})

test('a text is looked for in the newest 10,000 sessions, and the answer says so; a whole id is found anywhere', async (t) => {
  const conductor = await startConductor(t)
  const { token } = await conductor.issue('acme', 'owner')
  await conductor.database.batch('acme', [
    {
      text: `INSERT INTO sessions (tenant_id, id, profile, runtime, profile_snapshot, status, created_at)
        SELECT 'acme', 'sess' || n, 'p' || n % 2, 'general', '{}', 'idle', '2026-01-01Z'::timestamptz - n * interval '1 second'
        FROM generate_series(1, 10002) n`,
    },
  ])
  const found = async (query: string) => {
    const reply = await conductor.call(token, 'GET', `/api/sessions?${query}`)
    const { 'x-total-count': total, 'x-total-count-exact': exact, 'x-next-cursor': next } = reply.headers
    return { ids: reply.json<{ id: string }[]>().map(({ id }) => id), total, exact, next: String(next) }
  }
  const first = await found('q=P1&limit=2')
  assert.deepEqual([first.ids, first.total, first.exact], [['sess1', 'sess3'], '5000', 'false'])
  assert.deepEqual((await found(`q=P1&limit=2&cursor=${first.next}`)).ids, ['sess5', 'sess7'])
  assert.deepEqual((await found('q=ess10002&limit=2')).ids, [], 'a part of the id of an older one')
  const { ids, exact } = await found('q=sess10002&limit=2')
  assert.deepEqual([ids, exact], [['sess10002'], undefined])
})
