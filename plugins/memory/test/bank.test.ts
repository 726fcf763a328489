import assert from 'node:assert/strict'
import { test } from 'node:test'
import { overLimit } from '#contracts/limits'
import { type Answer, stage } from './stage.ts'

test('a memory is created, listed, read and deleted; what is missing or foreign is 404, what cannot be is 400', async (t) => {
  const { call, save } = await stage(t)
  const made = await call('POST', '/profiles/helper/memories', {
    rawInput: 'Hi! Ann bought a blue bike. Thanks!',
    category: 'things',
    summary: 'A bike.',
    endUserId: 'ann',
    sessionId: 'sess-1',
    runId: 'run-1',
    eventAt: '2026-05-07T10:00:00Z',
    ttlSeconds: 3600,
  })
  assert.equal(made.statusCode, 201)
  const { id, createdAt, expiresAt, ...rest } = made.json<Record<string, string>>()
  assert.match(id!, /^mem_/)
  assert.ok(Date.parse(expiresAt!) - Date.parse(createdAt!) === 3_600_000)
  assert.deepEqual(rest, {
    stored: true,
    profile: 'helper',
    endUserId: 'ann',
    sessionId: 'sess-1',
    runId: 'run-1',
    category: 'things',
    rawInput: 'Hi! Ann bought a blue bike. Thanks!',
    processedContent: 'Ann bought a blue bike.',
    summary: 'A bike.',
    source: 'mined',
    confidence: 0.7,
    language: 'en',
    eventAt: '2026-05-07T10:00:00.000Z',
    ttlSeconds: 3600,
  })
  const read = await call('GET', `/profiles/helper/memories/${id}`)
  assert.equal(read.json().processedContent, 'Ann bought a blue bike.')

  for (let i = 0; i < 120; i++) await save({ processedContent: `Number ${i} of the list is item${i}.` })
  const page = await call('GET', '/profiles/helper/memories')
  assert.deepEqual([page.json().length, page.headers['x-total-count']], [100, '121'])
  assert.equal(page.json()[0].processedContent, 'Number 119 of the list is item119.')
  const last = await call('GET', '/profiles/helper/memories?limit=10&offset=115')
  assert.equal(last.json().length, 6)
  const next = await call('GET', `/profiles/helper/memories?limit=100&cursor=${page.headers['x-next-cursor']}`)
  assert.equal(next.json().length, 21)
  const filtered = await call(
    'GET',
    '/profiles/helper/memories?endUserId=ann&category=things&from=2026-05-01&to=2026-06-01',
  )
  assert.deepEqual(
    filtered.json().map((one: Answer) => one.id),
    [id],
  )

  for (const [method, url, body, status] of [
    ['GET', '/profiles/nobody/memories', undefined, 404],
    ['GET', '/profiles/nobody/memories/search', undefined, 404],
    ['POST', '/profiles/nobody/memories', { rawInput: 'Ann likes tea.' }, 404],
    ['GET', '/profiles/helper/memories/mem_0', undefined, 404],
    ['DELETE', '/profiles/helper/memories/%00', undefined, 404],
    ['POST', '/profiles/helper/memories', {}, 400],
    ['POST', '/profiles/helper/memories', { summary: 'only' }, 400],
    ['POST', '/profiles/helper/memories', { rawInput: 'x', extra: 1 }, 400],
    ['POST', '/profiles/helper/memories', { rawInput: 'Ann likes tea.', eventAt: '2026-02-31' }, 400],
    ['POST', '/profiles/helper/memories', { rawInput: 'Ann likes tea.', eventAt: '0000-01-01' }, 400],
    ['POST', '/profiles/helper/memories', { rawInput: 'Ann likes tea.', eventAt: '9999-12-31T23:00:00-12:00' }, 400],
    ['POST', '/profiles/helper/memories', { rawInput: 'Ann likes tea.', eventAt: '0001-01-01T00:00:00+12:00' }, 400],
    ['POST', '/profiles/helper/memories', { rawInput: 'Ann likes tea.', ttlSeconds: 0 }, 400],
    ['POST', '/profiles/helper/memories', { rawInput: 'Ann likes tea.', endUserId: 'a\0b' }, 400],
    ['POST', '/profiles/helper/memories', { rawInput: 'Ann likes tea.', supersedes: 'mem_none' }, 400],
    ['GET', '/profiles/helper/memories/search?limit=0', undefined, 400],
    ['GET', '/profiles/helper/memories/search?minScore=2', undefined, 400],
    ['GET', '/profiles/helper/memories?cursor=nonsense', undefined, 400],
    ['GET', '/profiles/helper/memories?from=2026-02-30', undefined, 400],
    ['GET', '/profiles/helper/memories/search?q=tea&to=9999-12-31T23:00:00-12:00', undefined, 400],
  ] as const) {
    const { statusCode, body: said } = await call(method, url, body)
    assert.equal(statusCode, status, `${method} ${url} ${JSON.stringify(body)}: ${said}`)
  }
  // Characters that PostgreSQL cannot store must not make the whole memory fail.
  const odd = await save({ rawInput: 'Ann likes \0 tea \ud800 and toast.' })
  assert.equal(odd.stored, true)
  assert.equal((await call('GET', `/profiles/helper/memories/${id}`, undefined, 'globex')).statusCode, 404)
  assert.equal((await call('DELETE', `/profiles/helper/memories/${id}`, undefined, 'globex')).statusCode, 404)
  assert.equal((await call('DELETE', `/profiles/helper/memories/${id}`)).statusCode, 204)
  assert.equal((await call('DELETE', `/profiles/helper/memories/${id}`)).statusCode, 404)
})

test('the same is stored once, what is corrected is history, and what somebody chose outranks what was found', async (t) => {
  const { call, save, search } = await stage(t)
  const berlin = await save({ rawInput: 'Ann: I live in Berlin.', endUserId: 'ann' })
  assert.deepEqual(await save({ rawInput: 'ann:  i live in BERLIN', endUserId: 'ann' }), {
    stored: false,
    reason: 'duplicate',
    id: berlin.id,
  })
  assert.equal(
    (await save({ rawInput: 'Ann: I live in Berlin.', endUserId: 'bob' })).stored,
    true,
    'another person’s is another memory',
  )
  const munich = await save({ rawInput: 'Ann moved to Munich.', endUserId: 'ann' })
  assert.equal(munich.supersedes, berlin.id)
  const current = async (q: string, more = {}) =>
    (await search({ q, endUserId: 'ann', ...more })).map((one) => one.processedContent)
  assert.deepEqual(await current('Where does Ann live?'), ['Ann moved to Munich.'])
  assert.deepEqual((await current('Where did Ann live before?')).toSorted(), [
    'Ann moved to Munich.',
    'Ann: I live in Berlin.',
  ])
  assert.equal((await current('Where does Ann live?', { includeSuperseded: 'true' })).length, 2)
  const history = (await call('GET', `/profiles/helper/memories/${berlin.id}/history`)).json<Answer[]>()
  assert.deepEqual(
    history.map((one) => [one.id, one['supersededBy']]),
    [
      [munich.id, undefined],
      [berlin.id, munich.id],
    ],
  )
  // A memory of an earlier time that is stored later is superseded at once.
  const rome = await save({ rawInput: 'Ann lives in Rome.', endUserId: 'ann', eventAt: '2020-01-01' })
  assert.equal(rome['supersededBy'], munich.id)
  // A curated memory supersedes a mined one, but not the other way round. A curated duplicate makes a mined memory curated.
  const oslo = await save({ processedContent: 'Ann lives in Oslo.', endUserId: 'ann' })
  assert.equal(oslo.supersedes, munich.id)
  const paris = await save({ rawInput: 'Ann lives in Paris.', endUserId: 'ann' })
  assert.deepEqual([paris.stored, paris.supersedes], [true, undefined])
  assert.equal((await current('Where does Ann live?'))[0], 'Ann lives in Oslo.')
  const tea = await save({ rawInput: 'Ann likes green tea from Japan.' })
  assert.deepEqual(await save({ processedContent: 'Ann likes green tea from Japan' }), {
    stored: false,
    reason: 'duplicate',
    id: tea.id,
  })
  assert.equal((await call('GET', `/profiles/helper/memories/${tea.id}`)).json().source, 'curated')
  // A memory that is named by its id can be corrected in any words.
  const coffee = await save({
    processedContent: 'Green tea is nothing for Ann any more.',
    supersedes: tea.id,
  })
  assert.equal(coffee.supersedes, tea.id)
  assert.equal((await call('GET', `/profiles/helper/memories/${tea.id}`)).json().supersededBy, coffee.id)
  // Concurrent writes of the same statement store it only once.
  const many = await Promise.all(
    Array.from({ length: 8 }, () => save({ processedContent: 'The code of the gate is known.' })),
  )
  assert.equal(many.filter(({ stored }) => stored).length, 1)
})

test('junk is refused by what it is and counted; the bank is shown grouped, paged and in figures', async (t) => {
  const { call, save } = await stage(t, { profiles: ['helper', 'other'] })
  for (const [rawInput, detail] of [
    ['Hello!', 'greeting'],
    ['You are a helpful assistant.', 'system_prompt'],
    ['{"status": 200, "body": []}', 'tool_noise'],
    ['<recalled_memories>\n- (2026-01-01) Ann likes tea.\n</recalled_memories>', 'recalled'],
  ])
    assert.deepEqual(await save({ rawInput: rawInput! }), { stored: false, reason: 'junk', detail })
  await save({ processedContent: 'Ann likes tea.', category: 'taste', endUserId: 'ann' })
  await save({ processedContent: 'Ann likes tea.', category: 'taste', endUserId: 'ann' })
  await save({ processedContent: 'Bob likes 100% cocoa.', summary: 'Taste of Bob' })
  await save({ rawInput: 'The door is green.' }, 'acme', 'other')
  await save({ processedContent: 'Secret of globex.' }, 'globex')
  const stats = (await call('GET', '/memory/stats')).json()
  assert.deepEqual(
    [
      stats.memories,
      stats.current,
      stats.profilesWithMemory,
      stats.endUsers,
      stats.bySource,
      stats.byCategory,
      stats.byProfile,
    ],
    [3, 3, 2, 1, { curated: 2, mined: 1 }, { '': 2, taste: 1 }, { helper: 2, other: 1 }],
  )
  assert.deepEqual(stats.refused, { greeting: 1, system_prompt: 1, tool_noise: 1, recalled: 1, duplicate: 1 })
  const grouped = (await call('GET', '/memory')).json()
  assert.deepEqual([grouped.total, grouped.profilesWithMemory, grouped.items], [3, 2, undefined])
  assert.deepEqual(
    grouped.profiles.map((one: { profile: string; total: number; memories: unknown[] }) => [
      one.profile,
      one.total,
      one.memories.length,
    ]),
    [
      ['helper', 2, 2],
      ['other', 1, 1],
    ],
  )
  const page = await call('GET', '/memory?limit=2&offset=1')
  const { total, profilesWithMemory, limit, offset, items } = page.json()
  assert.deepEqual([total, profilesWithMemory, limit, offset, items.length], [3, 2, 2, 1, 2])
  assert.equal(page.headers['x-total-count'], '3')
  // A filter chooses memories; the number of profiles that have any is the same in both forms.
  for (const query of ['q=zebra', 'q=zebra&limit=2', 'category=zebra', 'category=zebra&limit=2']) {
    const none = (await call('GET', `/memory?${query}`)).json()
    assert.deepEqual([none.total, none.profilesWithMemory], [0, 2], query)
  }
  const found = async (query: string) =>
    (await call('GET', `/memory?limit=10&${query}`))
      .json()
      .items.map((one: { processedContent: string }) => one.processedContent)
  assert.deepEqual(await found('q=TASTE'), ['Bob likes 100% cocoa.'])
  assert.deepEqual(await found('q=other'), ['The door is green.'])
  assert.deepEqual(await found('q=100%25'), ['Bob likes 100% cocoa.'])
  assert.deepEqual(await found('category=taste'), ['Ann likes tea.'])
  assert.deepEqual(await found('q=_oor'), [])
  assert.equal((await call('GET', '/memory?q=tea')).json().profiles.length, 1)
})

test('limits hold, also against writes at once; what is deleted or has had its time is free again', async (t) => {
  const { call, save, sweep, used, database, search } = await stage(t, { limits: { memories: 3 } })
  const made = await Promise.all(
    ['one apple', 'two pears', 'three plums', 'four figs', 'five dates'].map((what) =>
      save({ processedContent: `Ann has ${what}.`, ttlSeconds: 3600 }),
    ),
  )
  assert.equal(made.filter(({ stored }) => stored).length, 3)
  const over = await call('POST', '/profiles/helper/memories', { processedContent: 'Eve has nothing at all.' })
  assert.deepEqual([over.statusCode, over.json().error, over.json().limit], [409, 'limit_exceeded', 'memories'])
  assert.equal(await used('memories'), 3)
  assert.equal((await save({ processedContent: 'Theirs is another limit.' }, 'globex')).stored, true)
  await database.batch('acme', [{ text: `UPDATE memories SET expires_at = now() - interval '1 second'` }])
  assert.deepEqual(
    [(await search({ q: 'Ann' })).length, (await call('GET', '/profiles/helper/memories')).json().length],
    [0, 0],
  )
  const hold = (held: boolean) =>
    database.systemBatch([{ text: `UPDATE tenants SET legal_hold = $1 WHERE id = 'acme'`, values: [held] }])
  await hold(true)
  await sweep()
  assert.equal(await used('memories'), 3, 'a legal hold keeps what has had its time')
  await hold(false)
  await sweep()
  assert.deepEqual([await used('memories'), await used('memoryBytes')], [0, 0])
  // The deletion also removes the rows by which the memories were found.
  for (const table of ['memory_postings', 'memory_terms', 'memory_people'])
    assert.deepEqual(await database.batch('acme', [{ text: `SELECT * FROM ${table}` }]), [[]], table)
  const small = await stage(t, { limits: { memoryBytes: 30 } })
  assert.equal((await small.save({ processedContent: 'Ann has a short one.' })).stored, true)
  const large = await small.call('POST', '/profiles/helper/memories', { processedContent: 'Ann has a longer one.' })
  assert.equal(large.json().limit, 'memoryBytes')
})

test('searches and writes take as many turns of their tenant as they cost; where there are none left, 429, and nothing was done', async (t) => {
  const taken: [kind: string, turns: number][] = []
  let full = false
  const { call, save, search, tools } = await stage(t, {
    async turn(_tenant, kind, turns) {
      if (full) throw overLimit(kind, 1)
      taken.push([kind, turns])
    },
  })
  const words = (count: number) => Array.from({ length: count }, (_, i) => `gadget${i}`).join(' ')
  await save({ processedContent: words(200) })
  for (let n = 0; n < 40; n++) await save({ processedContent: `${words(30)} of thing ${n}.` })
  const [long, short] = [taken[0]!, taken[1]!]
  assert.deepEqual([long[0], short[0]], ['writesPerMinute', 'writesPerMinute'])
  assert.ok(long[1] > short[1] && short[1] >= 1, `${long[1]} of a long one, ${short[1]} of a short one`)
  taken.length = 0
  await search({ q: words(2) })
  await search({ q: words(30), limit: '200' })
  assert.deepEqual([taken[0]![0], taken[1]![0]], ['readsPerMinute', 'readsPerMinute'])
  assert.ok(taken[1]![1] > 5 * taken[0]![1], `${taken[1]![1]} of a long question, ${taken[0]![1]} of a short one`)
  full = true
  const asked = await call('GET', `/profiles/helper/memories/search?q=gadget1`)
  assert.deepEqual([asked.statusCode, asked.json().limit], [429, 'readsPerMinute'])
  const caller = { tenantId: 'acme', profile: { name: 'helper' }, sessionId: 's', runId: 'r' } as never
  const told = await tools.get('memory_search')!.execute({ query: 'gadget1', limit: 8, history: false }, caller)
  assert.ok(!told.ok && /readsPerMinute/.test(String(told.content)))
  const written = await call('POST', '/profiles/helper/memories', { processedContent: 'Ann has nothing at all.' })
  assert.deepEqual([written.statusCode, written.json().limit], [429, 'writesPerMinute'])
  full = false
  assert.equal((await call('GET', '/profiles/helper/memories?limit=200')).json().length, 41)
})

test('without a database every route says so, and conversations begin as they are', async (t) => {
  const { call, recall, tools, data } = await stage(t, { database: false })
  for (const [method, url] of [
    ['GET', '/profiles/helper/memories'],
    ['POST', '/profiles/helper/memories'],
    ['GET', '/profiles/helper/memories/search'],
    ['GET', '/profiles/helper/memories/mem_1'],
    ['DELETE', '/profiles/helper/memories/mem_1'],
    ['GET', '/memory'],
    ['GET', '/memory/stats'],
  ] as const) {
    const reply = await call(method, url, method === 'POST' ? {} : undefined)
    assert.deepEqual([reply.statusCode, reply.json().error], [503, 'database_required'], url)
  }
  const message = { tenantId: 'acme', runId: 'r', profile: { name: 'helper', memory: { inject: 3 } }, prompt: 'Hello' }
  assert.equal(await recall.choose(message), '')
  assert.deepEqual([tools.size, data.size], [0, 0])
})
