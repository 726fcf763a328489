import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { test, type TestContext } from 'node:test'
import { limitNames } from '#contracts/limits'
import { startConductor } from './conductor.ts'

/** A conductor, an operator's key, and the key of a tenant with these limits. */
async function limited(t: TestContext, limits: object) {
  const conductor = await startConductor(t)
  const { call, issue } = conductor
  const operator = (await issue('acme', 'owner')).token
  assert.equal((await call(operator, 'POST', '/api/tenants', { id: 'initech' })).statusCode, 201)
  const changed = await call(operator, 'PATCH', '/api/tenants/initech', { limits })
  assert.deepEqual([changed.statusCode, changed.json().limits], [200, limits])
  return { ...conductor, operator, key: (await issue('initech', 'owner')).token }
}

test('a tenant sees every limit, which are its own, and what it uses', async (t) => {
  const { call, key, operator } = await limited(t, { profiles: 7 })
  await call(key, 'POST', '/api/profiles', { name: 'one' })
  const { limits } = (await call(key, 'GET', '/api/limits')).json()
  assert.deepEqual(
    limits.map(({ name }: { name: string }) => name),
    limitNames,
  )
  const { about, ...profiles } = limits.find(({ name }: { name: string }) => name === 'profiles')
  assert.deepEqual(profiles, { name: 'profiles', max: 7, used: 1, unit: 'profiles', own: true })
  assert.match(about, /\w/)
  const shown = (await call(operator, 'GET', '/api/tenants/initech')).json()
  assert.deepEqual(shown.limits, { profiles: 7 })
  const back = await call(operator, 'PATCH', '/api/tenants/initech', { limits: { profiles: null } })
  assert.deepEqual(back.json().limits, {})
  for (const bad of [{ profiles: -1 }, { profiles: 1.5 }, { unicorns: 1 }, { runningRuns: 2 ** 40 }])
    assert.equal((await call(operator, 'PATCH', '/api/tenants/initech', { limits: bad })).statusCode, 400)
  assert.equal((await call(key, 'PATCH', '/api/tenants/initech', { limits: {} })).statusCode, 404, 'not by itself')
})

test('skills are bounded in number and size, and those of the platform are nobody’s', async (t) => {
  const { call, key } = await limited(t, { skills: 1, skillBytes: 2_000 })
  const skill = { name: 'letters', description: 'd', body: 'b' }
  assert.equal(
    (await call(key, 'POST', '/api/skills', { ...skill, body: 'x'.repeat(2_000) })).json().limit,
    'skillBytes',
  )
  assert.equal((await call(key, 'POST', '/api/skills', skill)).statusCode, 201)
  const refused = await call(key, 'POST', '/api/skills', { ...skill, name: 'more' })
  assert.deepEqual([refused.statusCode, refused.json().limit, refused.json().max], [409, 'skills', 1])
  const { limits } = (await call(key, 'GET', '/api/limits')).json()
  const shown = (name: string) => limits.find((limit: { name: string }) => limit.name === name)
  assert.deepEqual([shown('skills').used, shown('skills').max, shown('skillBytes').max], [1, 1, 2_000])
})

test('requests of a minute are counted by what they do, and a refused one says when to come back', async (t) => {
  const { call, key, operator } = await limited(t, { readsPerMinute: 3, writesPerMinute: 2 })
  for (let i = 0; i < 3; i++) assert.equal((await call(key, 'GET', '/api/profiles')).statusCode, 200)
  const refused = await call(key, 'GET', '/api/profiles')
  assert.deepEqual(
    [refused.statusCode, refused.json().error, refused.json().limit],
    [429, 'limit_reached', 'readsPerMinute'],
  )
  assert.ok(Number(refused.headers['retry-after']) > 0)
  assert.equal((await call(key, 'POST', '/api/profiles', { name: 'a' })).statusCode, 201, 'writes have their own')
  assert.equal((await call(key, 'POST', '/api/profiles', { name: 'b' })).statusCode, 201)
  assert.equal((await call(key, 'POST', '/api/profiles', { name: 'c' })).json().limit, 'writesPerMinute')
  assert.equal((await call(operator, 'GET', '/api/profiles')).statusCode, 200, 'and other tenants have theirs')
})

test('what a limit of requests refuses is not put on record: the records of a tenant are bounded like its writes', async (t) => {
  const { call, key } = await limited(t, { writesPerMinute: 2 })
  for (const name of ['a', 'b', 'c', 'd']) await call(key, 'POST', '/api/profiles', { name })
  const entries = (await call(key, 'GET', '/api/audit')).json() as { action: string; status: number }[]
  const made = entries.filter(({ action }) => action === 'profiles.create')
  assert.deepEqual(
    made.map(({ status }) => status),
    [201, 201],
  )
})

test('profiles are bounded in number and size', async (t) => {
  const { call, key } = await limited(t, { profiles: 2, profileBytes: 2_000 })
  const made = await Promise.all(['a', 'b', 'c', 'd'].map((name) => call(key, 'POST', '/api/profiles', { name })))
  assert.deepEqual(made.map(({ statusCode }) => statusCode).sort(), [201, 201, 409, 409])
  const refused = made.find(({ statusCode }) => statusCode === 409)!.json()
  assert.deepEqual([refused.error, refused.limit, refused.max], ['limit_exceeded', 'profiles', 2])
  const name = made.find(({ statusCode }) => statusCode === 201)!.json().name
  assert.equal((await call(key, 'POST', '/api/profiles', { name })).json().error, 'conflict')
  const large = await call(key, 'PUT', `/api/profiles/${name}`, { instructions: 'x'.repeat(2_000) })
  assert.deepEqual([large.statusCode, large.json().limit], [409, 'profileBytes'])
})

test('a tenant that has stored as much as it may starts no run and writes no profile; an operator can give it more', async (t) => {
  const { call, key, operator } = await limited(t, { storedBytes: 20_000 })
  const instructions = 'x'.repeat(15_000)
  assert.equal((await call(key, 'POST', '/api/profiles', { name: 'one', instructions })).statusCode, 201)
  const stored = async () => {
    const { limits } = (await call(key, 'GET', '/api/limits')).json()
    return limits.find(({ name }: { name: string }) => name === 'storedBytes')
  }
  const shown = await stored()
  assert.ok(shown.used > 15_000 && shown.used < 20_000 && shown.max === 20_000, JSON.stringify(shown))
  assert.equal((await call(key, 'POST', '/api/runs', { profile: 'one', prompt: 'x' })).statusCode, 202)
  const refusals = [
    await call(key, 'POST', '/api/runs', { profile: 'one', prompt: 'x' }),
    await call(key, 'PUT', '/api/profiles/one', { instructions }),
    // Nothing else bounds how many of these there are.
    await call(key, 'POST', '/api/api-keys', { label: 'more' }),
    await call(key, 'POST', '/api/profiles/one/publish'),
    await call(key, 'POST', '/api/profiles/one/keys', { label: 'more' }),
    await call(key, 'POST', '/api/pools', { name: 'more' }),
    await call(key, 'POST', '/api/profiles/one/memories', { processedContent: 'Anna lives in Bern.' }),
  ]
  for (const refused of refusals)
    assert.deepEqual(
      [refused.statusCode, refused.json().error, refused.json().limit],
      [409, 'limit_exceeded', 'storedBytes'],
    )
  const { id } = (await call(key, 'GET', '/api/api-keys')).json()[0]
  const rotated = await call(key, 'POST', `/api/api-keys/${id}/rotate`, { graceSeconds: 600 })
  assert.equal(rotated.statusCode, 201, 'a key that leaked is replaced in any case')
  assert.equal((await call(key, 'DELETE', '/api/profiles/one')).statusCode, 204, 'what frees is allowed')
  await call(operator, 'PATCH', '/api/tenants/initech', { limits: { storedBytes: 10_000_000 } })
  assert.equal((await call(key, 'POST', '/api/profiles', { name: 'two', instructions })).statusCode, 201)
  // What is written counts at once, and not with the next count of the night.
  const writes: [string, object, least?: number][] = [
    ['/api/api-keys', { label: 'more' }],
    ['/api/profiles/two/publish', {}],
    ['/api/profiles/two/keys', { label: 'more' }],
    ['/api/pools', { name: 'more' }],
    ['/api/profiles/two/memories', { processedContent: 'Anna lives in Bern.' }, 300],
  ]
  // The entry in the audit log is less.
  for (const [path, body, least = 600] of writes) {
    const before = (await stored()).used
    const made = await call(key, 'POST', path, body)
    assert.equal(made.statusCode, 201, made.body)
    assert.ok((await stored()).used > before + least, path)
  }
})

test('streams and messages to agents are bounded for all keys of a tenant together', async (t) => {
  const { call, key, gateway } = await limited(t, { openStreams: 0, chatsPerMinute: 1 })
  const stream = await call(key, 'GET', '/api/runs/any/stream')
  assert.deepEqual([stream.statusCode, stream.json().limit], [429, 'openStreams'])
  assert.equal((await call(key, 'GET', '/api/runs/any')).statusCode, 404, 'no other request is a stream')
  await call(key, 'POST', '/api/profiles', { name: 'helper' })
  await call(key, 'POST', '/api/profiles/helper/publish', {})
  const chat = async (suffix = '') => {
    const issued = await call(key, 'POST', '/api/profiles/helper/keys', { label: 'web' })
    return gateway.inject({
      method: 'POST',
      url: `/v1/chat/initech/helper${suffix}`,
      headers: { authorization: `Bearer ${issued.json().token}` },
      payload: { message: 'hello' },
    })
  }
  const first = await chat()
  assert.equal(first.statusCode, 200, first.body)
  const refused = await chat()
  assert.deepEqual([refused.statusCode, refused.json().limit], [429, 'chatsPerMinute'])
  assert.equal((await chat('/stream')).statusCode, 429)
})

test('operators find every limit in their table', async () => {
  const text = await readFile(new URL('../docs/operations.md', import.meta.url), 'utf8')
  const rows = text.split('\n').filter((line) => line.startsWith('| `'))
  assert.deepEqual(
    limitNames.filter((name) => !rows.some((row) => row.includes(`\`${name}\``))),
    [],
  )
  const role = await readFile(new URL('../config/conductor.yaml', import.meta.url), 'utf8')
  const byVariable = [...role.matchAll(/^    (\w+): \$\{AGENT_ORC_LIMIT_(\w+):-/gm)]
  assert.ok(byVariable.length > 0)
  assert.deepEqual(
    byVariable.filter(([, name, variable]) => {
      const row = rows.find((one) => one.includes(`\`${name}\``))
      return !row?.includes(`\`${variable}\``)
    }),
    [],
    'the row of each names the rest of its variable',
  )
})
