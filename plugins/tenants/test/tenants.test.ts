import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { definePlugin } from '#kernel'
import { ApiGuard, type Guard } from '#contracts/auth'
import { Database } from '#contracts/database'
import { RunStore } from '#contracts/run-store'
import { RunDispatch } from '#contracts/runs'
import { databasePlugin, fake, freshDatabase, testKernel } from '#testing'
import tenants from '../index.ts'

/** Every caller is an admin of `acme`, the admin tenant. The guard's own tests show who else may call. */
const openGuard: Guard = {
  protect() {},
  callerOf: () => ({ tenantId: 'acme', role: 'admin', keyId: 'tak_boss' }),
}

interface Run {
  readonly tenantId: string
  readonly runId: string
  readonly status?: string
}

async function conductor(t: TestContext, running: Run[] = [], cancel?: (run: Run) => Promise<void>) {
  const found: Database[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database },
    setup: async ({ deps }) => (found.push(deps.database), {}),
  })
  const store = {
    listRuns: async (tenantId: string, { status, limit = Infinity }: { status?: string; limit?: number }) => {
      const runs = running.filter((run) => run.tenantId === tenantId && run.status === status)
      return { items: runs.slice(0, limit), total: runs.length }
    },
  }
  const dispatch = {
    cancel: async (tenantId: string, runId: string) => {
      await cancel?.({ tenantId, runId })
      running.splice(
        running.findIndex((run) => run.tenantId === tenantId && run.runId === runId),
        1,
      )
    },
  }
  const kernel = await testKernel(t, [
    await databasePlugin(await freshDatabase(t)),
    fake(ApiGuard, openGuard),
    fake(RunStore, store as never),
    fake(RunDispatch, dispatch as never),
    tenants,
    probe,
  ])
  const call = (method: 'GET' | 'POST' | 'PATCH' | 'DELETE' | 'PUT', path = '', body?: object) =>
    kernel.listeners['conductor']!.inject({ method, url: `/api/tenants${path}`, ...(body ? { body } : {}) })
  const ids = async (query: string): Promise<string[]> =>
    (await call('GET', query)).json<{ tenants: { id: string }[] }>().tenants.map(({ id }) => id)
  return { call, ids, database: found[0]!, kernel }
}

test('create answers 201 with the tenant, whose name is its id unless given, and an id is given once', async (t) => {
  const { call } = await conductor(t)
  const reply = await call('POST', '', { id: 'initech', name: 'Initech' })
  assert.equal(reply.statusCode, 201)
  const { createdAt, ...rest } = reply.json()
  assert.match(createdAt, /Z$/)
  assert.deepEqual(rest, {
    id: 'initech',
    name: 'Initech',
    limits: {},
    retention: {},
    legalHold: false,
    deletedAt: null,
  })
  assert.deepEqual((await call('GET', '/initech')).json(), reply.json())
  assert.equal((await call('POST', '', { id: 'hooli' })).json().name, 'hooli')
  const again = await call('POST', '', { id: 'initech' })
  assert.deepEqual([again.statusCode, again.json().error], [409, 'conflict'])
  assert.equal((await call('GET', '/initech')).json().name, 'Initech')
  assert.equal((await call('DELETE', '/initech')).statusCode, 204)
  const buried = await call('POST', '', { id: 'initech' })
  assert.equal(buried.statusCode, 409)
  assert.match(buried.json().message, /deleted/)
})

test('of two that create one id at once, one does', async (t) => {
  const { call } = await conductor(t)
  const replies = await Promise.all(Array.from({ length: 8 }, () => call('POST', '', { id: 'hooli' })))
  assert.deepEqual(replies.map(({ statusCode }) => statusCode).toSorted(), [201, ...Array(7).fill(409)])
})

test('lists are by id, say how many match, come in pages, and search in id and name without patterns', async (t) => {
  const { call, ids } = await conductor(t)
  for (const [id, name] of [
    ['a_b', '100% Steel'],
    ['axb', 'Axb'],
    ['gone', 'Gone'],
  ]) {
    await call('POST', '', { id, name })
  }
  await call('DELETE', '/gone')
  const whole = await call('GET')
  assert.deepEqual([whole.json().total, whole.headers['x-total-count'], whole.headers['link']], [5, '5', undefined])
  assert.deepEqual(await ids(''), ['a_b', 'acme', 'axb', 'default', 'globex'])
  assert.deepEqual(await ids('?q=A_B'), ['a_b'])
  assert.deepEqual(await ids('?q=%25'), ['a_b'])
  assert.deepEqual(await ids('?q=%5C'), [])
  assert.deepEqual(await ids('?q=gone'), [])
  assert.deepEqual(await ids('?q=gone&includeDeleted=true'), ['gone'])
  const page = await call('GET', '?limit=2&offset=2')
  assert.deepEqual(page.json().total, 5)
  assert.deepEqual(
    page.json().tenants.map(({ id }: { id: string }) => id),
    ['axb', 'default'],
  )
  assert.equal(page.headers['x-total-count'], '5')
  assert.match(String(page.headers['link']), /offset=0>; rel="prev".*offset=4>; rel="next"/)
})

test('a deleted tenant is unknown unless asked for, keeps everything, and can be brought back', async (t) => {
  const { call, database } = await conductor(t)
  assert.equal((await call('PATCH', '/globex', { name: 'Globex Corp' })).json().name, 'Globex Corp')
  assert.equal((await call('DELETE', '/globex')).statusCode, 204)
  for (const reply of [await call('GET', '/globex'), await call('DELETE', '/globex')])
    assert.equal(reply.statusCode, 404)
  assert.equal((await call('PATCH', '/globex', { name: 'x' })).statusCode, 404)
  const shown = (await call('GET', '/globex?includeDeleted=true')).json()
  assert.deepEqual([shown.name, typeof shown.deletedAt], ['Globex Corp', 'string'])
  const back = await call('PATCH', '/globex', { deleted: false })
  assert.deepEqual([back.statusCode, back.json().name, back.json().deletedAt], [200, 'Globex Corp', null])
  assert.equal((await call('GET', '/globex')).statusCode, 200)
  const [rows] = await database.systemBatch<[object[]]>([{ text: `SELECT id FROM tenants WHERE id = 'globex'` }])
  assert.equal(rows.length, 1)
})

test('neither the default tenant nor the one that tenants are managed from can be deleted', async (t) => {
  const { call } = await conductor(t)
  for (const id of ['default', 'acme']) {
    const reply = await call('DELETE', `/${id}`)
    assert.deepEqual([reply.statusCode, reply.json().error], [409, 'conflict'], id)
    assert.equal((await call('GET', `/${id}`)).json().deletedAt, null)
  }
})

test('an id nobody has is 404, and a malformed request 400', async (t) => {
  const { call } = await conductor(t)
  for (const id of ['nobody', 'ACME', '%00', '%2e%2e', "x'--", 'x'.repeat(200)]) {
    for (const [method, body] of [['GET'], ['PATCH', { name: 'x' }], ['DELETE']] as const) {
      const reply = await call(method, `/${id}`, body)
      assert.deepEqual([reply.statusCode, reply.json().error], [404, 'not_found'], `${method} ${id}`)
    }
  }
  const bodies = [{}, { id: '' }, { id: 'Upper' }, { id: '../x' }, { id: 'a\0' }, { id: 'x'.repeat(64) }]
  for (const body of [...bodies, { id: 'x', name: '' }, { id: 'x', name: 'a\0' }, { id: 'x', plan: 'gold' }]) {
    assert.equal((await call('POST', '', body)).statusCode, 400, JSON.stringify(body))
  }
  for (const body of [{}, { deleted: true }, { id: 'y' }, { name: 'a\0' }]) {
    assert.equal((await call('PATCH', '/globex', body)).statusCode, 400, JSON.stringify(body))
  }
  for (const query of ['?limit=0', '?limit=201', '?offset=-1', '?q=%00', '?includeDeleted=perhaps']) {
    assert.equal((await call('GET', query)).statusCode, 400, query)
  }
})

test('what a deleted tenant has running or waiting is cancelled, and nothing else is touched', async (t) => {
  const runs = (status: string) =>
    Array.from({ length: 120 }, (_, i) => ({ tenantId: 'globex', runId: `${status}_${i}`, status }))
  const others = [
    { tenantId: 'acme', runId: 'run_other', status: 'running' },
    { tenantId: 'globex', runId: 'run_ended', status: 'ok' },
  ]
  const open = [...runs('running'), ...runs('queued'), ...others]
  const order: string[] = []
  const { call } = await conductor(t, open, async ({ runId }) => void order.push(runId.split('_')[0]!))
  await call('DELETE', '/globex')
  while (open.length > others.length) await nextTurn()
  assert.deepEqual(open, others)
  // Queued runs are cancelled first, because the end of a running run would start a queued one.
  assert.deepEqual(order, [...Array(120).fill('queued'), ...Array(120).fill('running')])
})

test('a cancellation that fails is logged, and the tenant is deleted all the same', async (t) => {
  const failing = () => Promise.reject(new Error('the runner is away'))
  const { call, kernel } = await conductor(t, [{ tenantId: 'globex', runId: 'run_1', status: 'running' }], failing)
  assert.equal((await call('DELETE', '/globex')).statusCode, 204)
  assert.equal((await call('GET', '/globex')).statusCode, 404)
  await kernel.stop()
  assert.equal(kernel.logs.filter(({ tenant }) => tenant === 'globex').length, 1)
})
