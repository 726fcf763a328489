import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import pg from 'pg'
import { freshDatabase } from '#testing'
import { stage } from './stage.ts'

const until = async (what: () => Promise<boolean>): Promise<void> => {
  for (let i = 0; i < 500 && !(await what()); i++) await new Promise((resolve) => setTimeout(resolve, 20))
}

test('questions find what answers them, by words, names, times and spelling, in five languages, and say why', async (t) => {
  const { call, save, search } = await stage(t)
  await until(async () => (await call('GET', '/memory/stats')).json().search.similarWords)
  for (const rawInput of [
    'Caroline: I went to a support group for refugees yesterday.',
    'Melanie: The kids painted a sunrise over the lake.',
    'Caroline: My sister Grace works as a nurse in Dublin.',
    'Melanie: I ran a charity race for mental health.',
    'Grace adopted two greyhounds.',
    'Peter hat letzte Woche in Köln zwei Häuser gekauft.',
    'María trabaja como ingeniera en una fábrica de aviones.',
    'Ольга купила билеты в Большой театр на субботу.',
    '小王喜欢在周末去西湖骑自行车。',
    'Melanie: Pottery is how I relax after work.',
  ])
    await save({ rawInput, eventAt: '2026-05-08T09:00:00Z', sessionId: 's1' })
  for (let i = 0; i < 60; i++)
    await save({
      rawInput: `Report ${i}: the pump of hall ${i % 7} was oiled and works.`,
      eventAt: '2026-01-05T09:00:00Z',
    })
  const first = async (q: string, more = {}) =>
    (await search({ q, limit: '5', at: '2026-05-20', ...more }))[0]?.processedContent ?? ''
  for (const [q, part] of [
    ['When did Caroline go to the support group?', 'support group'],
    ['What did the children paint?', 'sunrise'],
    ['Which race did Melanie run?', 'charity race'],
    ['What happened to refugees on 7 May 2026?', 'refugees'],
    ['How does Melanie relax?', 'Pottery'],
    ['what does caroline’s sister do', 'nurse'],
    ['Wer kaufte Haus in Köln?', 'Häuser'],
    ['¿Dónde trabaja María de ingeniero?', 'aviones'],
    ['Куда Ольга купила билет?', 'Большой театр'],
    ['谁喜欢骑自行车？', '西湖'],
    ['Who adopted greyhonds?', 'greyhounds'],
  ] as const)
    assert.match(await first(q), new RegExp(part), q)
  const [hit] = await search({ q: 'When did Caroline go to the support group?' })
  assert.deepEqual(hit!.why.find(({ list }) => list === 'words')!.matched, ['caroline', 'go', 'support', 'group'])
  assert.deepEqual(hit!.why.find(({ list }) => list === 'names')!.matched, ['caroline'])
  // The second step finds memories by the names in the first hits.
  const linked = await search({ q: 'What animals does the nurse have?', limit: '8' })
  assert.ok(
    linked.some(
      ({ processedContent, why }) => /greyhounds/.test(processedContent) && why.some(({ list }) => list === 'linked'),
    ),
    JSON.stringify(linked),
  )
  // A memory that has nothing to do with the question is not returned, whatever the limit.
  assert.deepEqual(await search({ q: 'quantum chromodynamics zebra' }), [])
  assert.deepEqual(await search({ q: `the ${'ab'.repeat(33)}` }), [])
  assert.deepEqual(await search({ q: 'the of and' }).then((all) => all.length), 8)
  const scores = (await search({ q: 'Melanie pottery work', limit: '20', minScore: '0' })).map(({ score }) => score)
  assert.ok(
    scores.every((score, i) => score >= 0 && score <= 1 && (i === 0 || score <= scores[i - 1]!)),
    String(scores),
  )
  const strict = await search({ q: 'Melanie pottery work', minScore: '0.6', limit: '20' })
  assert.ok(strict.length > 0 && strict.length < scores.length)
  assert.equal((await search({ q: 'pump oiled', limit: '50', maxTokens: '60' })).length, 4)
  assert.equal((await search({ q: '', limit: '3' })).length, 3)
  assert.ok(
    (await search({ q: 'pump', from: '2026-05-01' })).every(({ processedContent }) => !/pump/.test(processedContent)),
  )
})

test('whose memories are found is the end user’s and nobody’s, or anybody’s', async (t) => {
  const { save, search, recall } = await stage(t)
  await save({ processedContent: 'Ann keeps her passport in the drawer.', endUserId: 'ann', category: 'places' })
  await save({ processedContent: 'Bob keeps his passport in the safe.', endUserId: 'bob' })
  await save({ processedContent: 'A passport is valid for ten years.' })
  const of = async (more: Record<string, string>) =>
    (await search({ q: 'passport', ...more })).map(({ processedContent }) => processedContent.split(' ')[0]).toSorted()
  assert.deepEqual(await of({}), ['A', 'Ann', 'Bob'])
  assert.deepEqual(await of({ endUserId: 'ann' }), ['Ann'])
  assert.deepEqual(await of({ endUserId: 'ann', shared: 'true' }), ['A', 'Ann'])
  assert.deepEqual(await of({ shared: 'true' }), ['A'])
  assert.deepEqual(await of({ category: 'places' }), ['Ann'])
  assert.deepEqual(await search({ q: 'passport' }, 'globex'), [])
  // The same statement without an end user is another memory with the same content. A message has it only once.
  await save({ processedContent: 'Ann keeps her passport in the drawer' })
  const profile = { name: 'helper', memory: { inject: 5 } }
  const message = {
    tenantId: 'acme',
    runId: 'r1',
    profile,
    endUserId: 'ann',
    prompt: 'Where does Ann keep her passport?',
  }
  assert.equal((await recall.choose(message)).match(/drawer/g)?.length, 1)
  assert.equal((await recall.chosen('acme', ['r1'])).get('r1')?.match(/drawer/g)?.length, 1)
})

test('a filter that lets few of many memories pass hides none of them, by category and by time', async (t) => {
  const { database, save, search } = await stage(t)
  await save({ processedContent: 'Grace keeps the pump in hall 900.', category: 'rare', eventAt: '2024-02-03' })
  // After years there may be many memories that match the question better.
  await database.batch('acme', [
    {
      text: `INSERT INTO memories (tenant_id, id, bank, profile, person, category, content, source, confidence, language, event_at, digest, terms, weights, length, bytes)
             SELECT tenant_id, 'mem_' || n, bank, profile, person, 'common', 'The pump of the hall was oiled by Grace.', source, confidence, language,
               '2026-01-01'::timestamptz + n * interval '1 second', sha256(n::text::bytea), ARRAY['pump', 'hall', 'oil', 'grace'],
               ARRAY[100, 100, 100, 100]::smallint[], 4, 40
             FROM memories, generate_series(1, 2500) AS n WHERE tenant_id = 'acme'`,
    },
  ])
  const found = async (filter: Record<string, string>) =>
    (await search({ q: 'Was the pump of the hall oiled?', ...filter })).map((one) => one.processedContent)
  const kept = ['Grace keeps the pump in hall 900.']
  assert.deepEqual(await found({ category: 'rare' }), kept)
  assert.deepEqual(await found({ from: '2024-01-01', to: '2025-01-01' }), kept)
  assert.equal((await found({ category: 'common', from: '2026-01-01' })).length, 8)
  assert.deepEqual(await found({ category: 'common', to: '2025-01-01' }), [])
})

/** A database as it is before the first start of a conductor, which creates the extension. */
async function withoutTrigrams(t: TestContext, then: string): Promise<string> {
  const dsn = await freshDatabase(t)
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  await client.query(`DROP EXTENSION pg_trgm; ${then}`)
  await client.end()
  return dsn
}

test('a conductor creates pg_trgm where it is missing', async (t) => {
  const { call } = await stage(t, { dsn: await withoutTrigrams(t, '') })
  await until(async () => (await call('GET', '/memory/stats')).json().search.similarWords as boolean)
})

test('where pg_trgm cannot be created, searches go without it, and say so once', async (t) => {
  // The extension brings a function of this name, so it cannot be created.
  const own = `CREATE FUNCTION similarity(text, text) RETURNS real LANGUAGE sql AS 'SELECT 0::real'`
  const dsn = await withoutTrigrams(t, own)
  const { kernel, save, search, call } = await stage(t, { dsn })
  await until(async () => kernel.logs.some(({ msg }) => String(msg).includes('pg_trgm')))
  assert.equal(kernel.logs.filter(({ level, msg }) => level === 40 && String(msg).includes('pg_trgm')).length, 1)
  await save({ processedContent: 'Grace adopted two greyhounds.' })
  assert.equal((await search({ q: 'Who adopted greyhounds?' })).length, 1)
  assert.equal((await call('GET', '/memory/stats')).json().search.similarWords, false)
})

/** A stand-in for an OpenAI-compatible server: vectors by the topics that a text has, and statements by its lines. */
async function startProvider(t: TestContext) {
  const asked: {
    path: string
    body: { input?: string[]; messages?: { content: string }[] }
    key: string | undefined
  }[] = []
  const state = { away: false }
  const topics = [/car|vehicle|automobile/i, /food|pasta|eat/i, /music|song/i]
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const body = JSON.parse(Buffer.concat(chunks).toString())
    asked.push({ path: request.url!, body, key: request.headers.authorization })
    if (state.away) return void response.writeHead(500).end('{}')
    response.setHeader('content-type', 'application/json')
    const answer = request.url!.endsWith('/embeddings')
      ? {
          data: body.input.map((text: string, index: number) => ({
            index,
            embedding: topics.map((topic) => (topic.test(text) ? 1 : 0.01)),
          })),
        }
      : { choices: [{ message: { content: '- Ann owns a red car.\n- NOTHING' } }] }
    response.end(JSON.stringify(answer))
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.after(() => (server.closeAllConnections(), server.close()))
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`, asked, state }
}

test('with an embedding provider and vectors in the database memories are found by meaning; when it is away, without', async (t) => {
  const provider = await startProvider(t)
  const dsn = await freshDatabase(t)
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  // pgvector is not among the extensions of the embedded server: a type, a cast and an operator of its names stand in.
  await client.query(`CREATE DOMAIN vector AS text;
    CREATE FUNCTION cosine_distance(a text, b text) RETURNS float8 LANGUAGE sql IMMUTABLE AS $$
      SELECT 1 - sum(x * y) / (sqrt(sum(x * x)) * sqrt(sum(y * y)))
      FROM unnest(string_to_array(trim(both '[]' from a), ',')::float8[], string_to_array(trim(both '[]' from b), ',')::float8[]) AS v (x, y) $$;
    CREATE OPERATOR <=> (LEFTARG = text, RIGHTARG = text, FUNCTION = cosine_distance)`)
  const embeddings = { baseUrl: provider.url, apiKey: 'sk-1', model: 'm' }
  const { save, search, sweep, call, database } = await stage(t, { dsn, config: { embeddings, tenants: ['acme'] } })
  await until(async () => (await call('GET', '/memory/stats')).json().search.meaning)
  const made = await save({ processedContent: 'Ann drives an old automobile.' })
  await save({ processedContent: 'Bob cooks pasta on Sundays.' })
  await save({ processedContent: 'Of globex: an automobile.' }, 'globex')
  await sweep()
  const [hit, ...others] = await search({ q: 'Which vehicle is there?' })
  assert.equal(hit!.processedContent, 'Ann drives an old automobile.')
  assert.deepEqual(hit!.why[0], { list: 'meaning', rank: 1 })
  assert.deepEqual(others, [])
  assert.ok(provider.asked.every(({ key }) => key === 'Bearer sk-1'))
  assert.ok(!JSON.stringify(provider.asked).includes('globex'), 'texts of other tenants stay here')
  const calls = provider.asked.length
  await sweep()
  assert.equal(provider.asked.length, calls, 'each is embedded once')
  provider.state.away = true
  assert.equal((await search({ q: 'pasta' }))[0]!.processedContent, 'Bob cooks pasta on Sundays.')
  await call('DELETE', `/profiles/helper/memories/${made.id}`)
  const [[{ n }]] = await database.batch<[[{ n: number }]]>('acme', [
    { text: 'SELECT count(*)::int AS n FROM memory_vectors' },
  ])
  assert.equal(n, 1)
  await client.end()
})

test('a configured model makes memories of texts; when it is away, rules do', async (t) => {
  const provider = await startProvider(t)
  const { save } = await stage(t, { config: { model: { baseUrl: provider.url, model: 'm' } } })
  const made = (await save({ rawInput: 'Hi! So yesterday I finally picked up my new red car, you know.' })) as {
    processedContent: string
  }
  assert.equal(made.processedContent, 'Ann owns a red car.')
  await save({ rawInput: 'Hello!' })
  await save({ processedContent: 'Ann chose these words.' })
  assert.equal(provider.asked.length, 1, 'neither junk nor chosen words go to it')
  provider.state.away = true
  const ruled = await save({ rawInput: 'Hello! Bob sold his boat.' })
  assert.equal(ruled.processedContent, 'Bob sold his boat.')
})
