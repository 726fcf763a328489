import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Profile } from '#contracts/profiles'
import { conductor } from './conductor.ts'

test('create answers 201 with the stored profile: defaults filled in and an id assigned', async (t) => {
  const { call, profiles } = await conductor(t)
  const reply = await call('POST', '/api/profiles', { name: 'helper' })
  assert.equal(reply.statusCode, 201)
  const { id, createdAt, updatedAt, ...rest } = reply.json()
  assert.match(id, /^prof_/)
  assert.match(createdAt, /^\d{4}-.*Z$/)
  assert.equal(updatedAt, createdAt)
  assert.deepEqual(rest, {
    name: 'helper',
    runtime: 'general',
    model: 'builtin/demo',
    instructions: '',
    tools: [],
    skills: [],
    mcpServers: [],
    workerMode: 'static',
    limits: {},
    metadata: {},
    version: 1,
  })
  assert.deepEqual((await call('GET', '/api/profiles/helper')).json(), reply.json())
  assert.deepEqual(await profiles.find('acme', 'helper'), reply.json())
})

test('everything a client writes comes back as written', async (t) => {
  const { call } = await conductor(t)
  const body = {
    name: 'full',
    id: 'my-id',
    runtime: 'runtime_a',
    model: 'openai/gpt-x',
    instructions: 'Zeile eins\n\u2028 "quoted" \\u0000 😀',
    tools: ['calculate'],
    mcpServers: ['files'],
    workerMode: 'sandbox',
    sandbox: { provider: 'process', resources: { cpu: 2 } },
    limits: { maxSteps: 3, timeoutSeconds: 60 },
    metadata: { team: ['a', { b: null }] },
  }
  const created = await call('POST', '/api/profiles', { ...body, workerPlacement: { state: 'made up' } })
  assert.equal(created.statusCode, 201)
  const { createdAt, updatedAt } = created.json()
  assert.deepEqual(created.json(), { ...body, skills: [], version: 1, createdAt, updatedAt })
})

test('a profile has as many values as processes can hold of many, and nests no deeper than what carries it', async (t) => {
  const { call, database } = await conductor(t)
  const lists = Array.from({ length: 2_600 }, () => [])
  const nested = (levels: number): unknown => (levels === 0 ? 0 : [nested(levels - 1)])
  const refused = [
    await call('POST', '/api/profiles', { name: 'p', metadata: { lists } }),
    await call('POST', '/api/profiles', { name: 'p', sandbox: { provider: 'process', resources: { lists } } }),
    await call('POST', '/api/profiles', { name: 'p', metadata: { nested: nested(47) } }),
  ]
  for (const reply of refused) {
    const { error, maxValues, maxDepth } = reply.json()
    assert.deepEqual([reply.statusCode, error, maxValues, maxDepth], [400, 'too_many_values', 5_000, 48])
  }
  const metadata = { lists: lists.slice(0, 2_400), nested: nested(46) }
  assert.equal((await call('POST', '/api/profiles', { name: 'p', metadata })).statusCode, 201)
  // One of a release without the bound is still there, and only writing it again is refused.
  await database.batch('acme', [
    { text: `UPDATE profiles SET document = document || $1::jsonb`, values: [JSON.stringify({ metadata: { lists } })] },
  ])
  const old = (await call('GET', '/api/profiles/p')).json<Profile>()
  assert.deepEqual(old.metadata, { lists })
  assert.equal((await call('PUT', '/api/profiles/p', old)).json().error, 'too_many_values')
  await call('PUT', '/api/profiles/p', {})
  assert.equal((await call('POST', '/api/profiles/p/versions/2/restore')).json().error, 'too_many_values')
})

test('a taken name or id is 409 conflict, and only in its own tenant', async (t) => {
  const { call } = await conductor(t)
  await call('POST', '/api/profiles', { name: 'one', id: 'x' })
  const name = await call('POST', '/api/profiles', { name: 'one' })
  assert.equal(name.statusCode, 409)
  assert.equal(name.json().error, 'conflict')
  assert.match(name.json().message, /named 'one'/)
  const id = await call('POST', '/api/profiles', { name: 'two', id: 'x' })
  assert.equal(id.statusCode, 409)
  assert.match(id.json().message, /id 'x'/)
  assert.equal((await call('POST', '/api/profiles', { name: 'one', id: 'x' }, 'globex')).statusCode, 201)
})

test('update replaces the profile and keeps its id', async (t) => {
  const { call } = await conductor(t)
  const created = (await call('POST', '/api/profiles', { name: 'p', instructions: 'old', tools: ['calculate'] })).json()
  const replaced = await call('PUT', '/api/profiles/p', { model: 'openai/y' })
  assert.equal(replaced.statusCode, 200)
  const { id, model, tools, instructions, createdAt } = replaced.json()
  assert.deepEqual(
    { id, model, tools, instructions, createdAt },
    { id: created.id, model: 'openai/y', tools: [], instructions: '', createdAt: created.createdAt },
  )
  assert.deepEqual((await call('GET', '/api/profiles/p')).json(), replaced.json())
})

test('a profile that was read may be written back as it is', async (t) => {
  const { call } = await conductor(t)
  const created: Profile = (await call('POST', '/api/profiles', { name: 'p', tools: ['calculate'] })).json()
  const replaced = await call('PUT', '/api/profiles/p', created)
  assert.equal(replaced.statusCode, 200)
  assert.deepEqual({ ...replaced.json<Profile>(), updatedAt: '' }, { ...created, version: 2, updatedAt: '' })
})

test('update refuses another name or id, and an unknown profile is 404', async (t) => {
  const { call } = await conductor(t)
  await call('POST', '/api/profiles', { name: 'p' })
  assert.equal((await call('PUT', '/api/profiles/p', { name: 'q' })).statusCode, 400)
  assert.equal((await call('PUT', '/api/profiles/p', { id: 'other' })).statusCode, 409)
  assert.equal((await call('PUT', '/api/profiles/q', {})).statusCode, 404)
})

test('delete answers 204, and 404 from then on', async (t) => {
  const { call, profiles } = await conductor(t)
  await call('POST', '/api/profiles', { name: 'p' })
  const reply = await call('DELETE', '/api/profiles/p')
  assert.equal(reply.statusCode, 204)
  assert.equal(reply.body, '')
  assert.equal((await call('DELETE', '/api/profiles/p')).statusCode, 404)
  assert.equal((await call('GET', '/api/profiles/p')).statusCode, 404)
  assert.equal(await profiles.find('acme', 'p'), undefined)
})

test('the list is complete without limit, and a page with X-Total-Count and Link with one', async (t) => {
  const { call } = await conductor(t)
  for (const name of ['a', 'b', 'c']) await call('POST', '/api/profiles', { name })
  const names = (reply: { json(): { name: string }[] }) => reply.json().map((p) => p.name)
  const all = await call('GET', '/api/profiles')
  assert.deepEqual(names(all), ['a', 'b', 'c'])
  assert.equal(all.headers['x-total-count'], '3')
  const page = await call('GET', '/api/profiles?limit=1&offset=1')
  assert.deepEqual(names(page), ['b'])
  assert.equal(page.headers['x-total-count'], '3')
  assert.equal(
    page.headers['link'],
    '</api/profiles?limit=1&offset=0>; rel="prev", </api/profiles?limit=1&offset=2>; rel="next"',
  )
  const beyond = await call('GET', '/api/profiles?limit=2&offset=9')
  assert.deepEqual(names(beyond), [])
  assert.equal(beyond.headers['x-total-count'], '3')
  for (const query of ['limit=0', 'limit=201', 'limit=x', 'offset=-1']) {
    assert.equal((await call('GET', `/api/profiles?${query}`)).statusCode, 400, query)
  }
})

test('an unknown skill or MCP server is 400 and is named; known ones are taken', async (t) => {
  const { call } = await conductor(t)
  await call('POST', '/api/profiles', { name: 'p' })
  for (const [method, url] of [
    ['POST', '/api/profiles'],
    ['PUT', '/api/profiles/p'],
  ] as const) {
    const reply = await call(method, url, { name: 'p', skills: ['using-magic'] })
    assert.equal(reply.statusCode, 400)
    assert.equal(reply.json().error, 'unknown_skill: using-magic')
    const servers = await call(method, url, { name: 'p', skills: ['using-pdf'], mcpServers: ['files', 'none'] })
    assert.equal(servers.statusCode, 400)
    assert.equal(servers.json().error, 'unknown_mcp_server: none')
    assert.match(servers.json().message, /there are: files\./)
  }
})

test('a secret that a server of the profile is sent has to be there, and is named', async (t) => {
  const { call } = await conductor(t)
  const profile = { name: 'p', mcpServers: ['files'] }
  const refused = await call('POST', '/api/profiles', profile, 'globex')
  assert.deepEqual([refused.statusCode, refused.json().error], [400, 'unknown_secret: github'])
  assert.equal((await call('POST', '/api/profiles', { name: 'p' }, 'globex')).statusCode, 201)
  assert.equal((await call('POST', '/api/profiles', profile)).statusCode, 201)
})

test('a malformed profile is 400 with the field that is wrong', async (t) => {
  const { call } = await conductor(t)
  for (const [body, path] of [
    [{}, 'body/name'],
    [{ name: '../x' }, 'body/name'],
    [{ name: 'p', model: 'no-slash' }, 'body/model'],
    [{ name: 'p', runtime: 'No Such' }, 'body/runtime'],
    [{ name: 'p', limits: { maxSteps: 0 } }, 'body/limits/maxSteps'],
    [{ name: 'p', surprise: 1 }, 'body/surprise'],
  ] as const) {
    const reply = await call('POST', '/api/profiles', body)
    assert.equal(reply.statusCode, 400, JSON.stringify(body))
    assert.equal(reply.json().issues[0].path, path)
  }
})

test('text that PostgreSQL cannot store is 400, not a failure', async (t) => {
  const { call } = await conductor(t)
  await call('POST', '/api/profiles', { name: 'p' })
  for (const text of ['a\0b', 'half \ud800 of a pair']) {
    assert.equal((await call('POST', '/api/profiles', { name: 'q', instructions: text })).statusCode, 400)
    assert.equal((await call('PUT', '/api/profiles/p', { metadata: { text } })).statusCode, 400)
    assert.equal((await call('PUT', '/api/profiles/p', { metadata: { [text]: 1 } })).statusCode, 400)
  }
})

test("another tenant's profile answers exactly like one that does not exist", async (t) => {
  const { call } = await conductor(t)
  await call('POST', '/api/profiles', { name: 'secret' }, 'globex')
  for (const method of ['GET', 'PUT', 'DELETE'] as const) {
    const answers = []
    for (const name of ['secret', 'nothing', '%00', 'a%2Fb', '..']) {
      const reply = await call(method, `/api/profiles/${name}`, method === 'PUT' ? {} : undefined)
      answers.push([reply.statusCode, reply.json().error, Object.keys(reply.json())])
    }
    for (const answer of answers.slice(0, 4))
      assert.deepEqual(answer, [404, 'not_found', ['error', 'request_id', 'message']])
  }
  assert.equal((await call('GET', '/api/profiles/secret', undefined, 'globex')).statusCode, 200)
  assert.deepEqual((await call('GET', '/api/profiles')).json(), [])
})

test('q finds profiles by a part of their name, page by page', async (t) => {
  const { call } = await conductor(t)
  for (const name of ['Support-EN', 'support-de', 'billing', 'a_b', 'axb'])
    await call('POST', '/api/profiles', { name })
  const names = async (query: string) => {
    const reply = await call('GET', `/api/profiles?${query}`)
    return [reply.json<Profile[]>().map(({ name }) => name), reply.headers['x-total-count']]
  }
  const [found, total] = await names('q=SUPPORT')
  assert.deepEqual([(found as string[]).toSorted(), total], [['Support-EN', 'support-de'], '2'])
  // Not a pattern: an underscore is an underscore.
  assert.deepEqual(await names('q=a_'), [['a_b'], '1'])
  assert.deepEqual(await names('q=%25'), [[], '0'])
  const page = await call('GET', '/api/profiles?q=support&limit=1')
  assert.equal(page.headers['x-total-count'], '2')
  assert.equal(page.headers['link'], '</api/profiles?q=support&limit=1&offset=1>; rel="next"')
  assert.equal((await call('GET', '/api/profiles?q=%00')).statusCode, 400)
})
