import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { ApiGuard, type Guard } from '#contracts/auth'
import { type Profile, Profiles } from '#contracts/profiles'
import { type RunnerLink, RunnerPool } from '#contracts/runner'
import { databasePlugin, fake, freshDatabase, testKernel } from '#testing'
import profiles from '../index.ts'

/** Any caller of any tenant: who may call what is the guard's own test. */
const openGuard: Guard = {
  protect() {},
  callerOf: ({ headers }) => ({ tenantId: String(headers['tenant'] ?? 'acme'), role: 'admin', keyId: 'tak_test' }),
}

async function conductor(t: TestContext, runners: readonly RunnerLink[] = []) {
  const found: Profiles[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { profiles: Profiles },
    setup: async ({ deps }) => (found.push(deps.profiles), {}),
  })
  const pool = fake(RunnerPool, {
    place: () => runners[0]!,
    owner: () => undefined,
    all: () => runners,
    fleet: () => [],
    onLive: () => () => {},
  })
  const database = await databasePlugin(await freshDatabase(t))
  const kernel = await testKernel(t, [database, fake(ApiGuard, openGuard), profiles, probe, pool])
  const call = (method: 'GET' | 'POST' | 'PUT' | 'DELETE', url: string, body?: object, tenant = 'acme') =>
    kernel.listeners['conductor']!.inject({ method, url, headers: { tenant }, ...(body ? { body } : {}) })
  return { call, profiles: found[0]! }
}

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
  assert.deepEqual(created.json(), { ...body, skills: [], createdAt, updatedAt })
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
  assert.deepEqual({ ...replaced.json<Profile>(), updatedAt: '' }, { ...created, updatedAt: '' })
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

test('an unknown skill is 400 and names it', async (t) => {
  const { call } = await conductor(t)
  await call('POST', '/api/profiles', { name: 'p' })
  for (const [method, url] of [
    ['POST', '/api/profiles'],
    ['PUT', '/api/profiles/p'],
  ] as const) {
    const reply = await call(method, url, { name: 'p', skills: ['using-magic'] })
    assert.equal(reply.statusCode, 400)
    assert.equal(reply.json().error, 'unknown_skill: using-magic')
  }
})

test('a malformed profile is 400 with the field that is wrong', async (t) => {
  const { call } = await conductor(t)
  for (const [body, path] of [
    [{}, 'body/name'],
    [{ name: '../x' }, 'body/name'],
    [{ name: 'p', model: 'no-slash' }, 'body/model'],
    [{ name: 'p', runtime: 'No Such' }, 'body/runtime'],
    [{ name: 'p', limits: { maxSteps: 0 } }, 'body/limits/maxSteps'],
    [{ name: 'p', surprise: 1 }, 'body'],
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
    for (const answer of answers.slice(0, 4)) assert.deepEqual(answer, [404, 'not_found', ['error', 'request_id']])
  }
  assert.equal((await call('GET', '/api/profiles/secret', undefined, 'globex')).statusCode, 200)
  assert.deepEqual((await call('GET', '/api/profiles')).json(), [])
})

test('every runner is told of each change before the answer, best effort', async (t) => {
  const told: string[] = []
  const link = {
    hash: 'abcdef01',
    putProfile: async (tenant: string, profile: { name: string; model: string }) =>
      void told.push(`put ${tenant}/${profile.name} ${profile.model}`),
    deleteProfile: async (tenant: string, name: string) => void told.push(`delete ${tenant}/${name}`),
  } as unknown as RunnerLink
  const broken = {
    ...link,
    putProfile: () => new Promise<void>(() => {}),
    deleteProfile: () => Promise.reject(new Error('down')),
  }
  const { call } = await conductor(t, [link, broken])
  assert.equal((await call('POST', '/api/profiles', { name: 'p' })).statusCode, 201)
  assert.deepEqual(told, ['put acme/p builtin/demo'])
  await call('PUT', '/api/profiles/p', { model: 'openai/x' })
  assert.equal(told.at(-1), 'put acme/p openai/x')
  assert.equal((await call('DELETE', '/api/profiles/p')).statusCode, 204)
  assert.equal(told.at(-1), 'delete acme/p')
})
