import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Type } from '@sinclair/typebox'
import { access, definePlugin, errorTable, forbidden } from '#kernel'
import { testKernel } from '#testing'

const errors = errorTable('failing', { paymentRequired: { status: 402, message: 'Buy credit first.' } })

const failing = definePlugin({
  name: 'failing',
  errors,
  async setup(ctx) {
    ctx.routes('conductor', async (app) => {
      const body = Type.Object(
        {
          name: Type.String(),
          size: Type.Optional(Type.Integer()),
          mode: Type.Optional(Type.Union([Type.Literal('quick'), Type.Literal('thorough')])),
          note: Type.Optional(Type.Union([Type.String({ maxLength: 3 }), Type.Null()])),
          owner: Type.Optional(Type.Union([Type.Object({ id: Type.Integer() }), Type.Null()])),
        },
        { additionalProperties: false },
      )
      app.get('/known', access('public'), async () => {
        throw errors.paymentRequired({ detail: { checkout_path: '/pay' }, headers: { 'retry-after': '3' } })
      })
      app.get('/plain', access('public'), async () => {
        throw forbidden()
      })
      app.get('/bug', access('public'), async () => {
        throw new Error('password of db.internal is hunter2')
      })
      app.get('/not-an-error', access('public'), async () => {
        throw 'hunter2'
      })
      app.post('/thing', { ...access('public'), schema: { body } }, async (request) => request.body)
      app.get(
        '/item/:id',
        { ...access('public'), schema: { params: Type.Object({ id: Type.Integer() }) } },
        async (r) => r.params,
      )
    })
    return {}
  },
})

test('an error is {error, request_id, message, ...detail} with its status and headers', async (t) => {
  const { conductor } = (await testKernel(t, [failing])).listeners
  const reply = await conductor!.inject('/known')
  assert.equal(reply.statusCode, 402)
  assert.equal(reply.headers['retry-after'], '3')
  assert.match(String(reply.headers['content-type']), /^application\/json/)
  const { request_id: id, ...body } = reply.json()
  assert.equal(id, reply.headers['x-request-id'])
  assert.deepEqual(body, { error: 'payment_required', message: 'Buy credit first.', checkout_path: '/pay' })
})

test('the request id is ours, never the caller’s', async (t) => {
  const { conductor } = (await testKernel(t, [failing])).listeners
  const reply = await conductor!.inject({ url: '/plain', headers: { 'x-request-id': 'mine', 'request-id': 'mine' } })
  assert.match(reply.json().request_id, /^req_[\w-]{12}$/)
})

test('Accept: application/problem+json gets RFC 9457 with the same fields', async (t) => {
  const { conductor } = (await testKernel(t, [failing])).listeners
  const reply = await conductor!.inject({ url: '/known', headers: { accept: 'application/problem+json' } })
  assert.match(String(reply.headers['content-type']), /^application\/problem\+json/)
  const { request_id: id, ...body } = reply.json()
  assert.equal(typeof id, 'string')
  assert.deepEqual(body, {
    type: 'about:blank',
    title: 'Payment Required',
    status: 402,
    detail: 'Buy credit first.',
    error: 'payment_required',
    message: 'Buy credit first.',
    checkout_path: '/pay',
  })
})

test('a validation error lists every place with its path', async (t) => {
  const { conductor } = (await testKernel(t, [failing])).listeners
  const missing = (await conductor!.inject({ method: 'POST', url: '/thing', payload: { size: 1 } })).json()
  assert.equal(missing.error, 'invalid_request')
  assert.deepEqual(
    missing.issues.map((i: { path: string }) => i.path),
    ['body/name'],
  )
  const wrong = await conductor!.inject({ method: 'POST', url: '/thing', payload: { name: 'x', size: 'big' } })
  assert.equal(wrong.statusCode, 400)
  assert.deepEqual(wrong.json().issues, [{ path: 'body/size', message: 'must be integer' }])
  const params = (await conductor!.inject('/item/abc')).json()
  assert.deepEqual(params.issues, [{ path: 'params/id', message: 'must be integer' }])
})

test('a validation error says what is wrong in words of the request, once for each place', async (t) => {
  const { conductor } = (await testKernel(t, [failing])).listeners
  const issues = async (payload: object): Promise<unknown> =>
    (await conductor!.inject({ method: 'POST', url: '/thing', payload: { name: 'x', ...payload } })).json().issues
  assert.deepEqual(await issues({ name: undefined }), [{ path: 'body/name', message: 'is required' }])
  assert.deepEqual(await issues({ sise: 1 }), [{ path: 'body/sise', message: 'is not a field of this request' }])
  assert.deepEqual(await issues({ mode: 'slow' }), [{ path: 'body/mode', message: 'must be one of: quick, thorough' }])
  assert.deepEqual(await issues({ note: 5 }), [{ path: 'body/note', message: 'must be string or must be null' }])
  assert.deepEqual(await issues({ owner: { id: 'x' } }), [{ path: 'body/owner/id', message: 'must be integer' }])
  const [long] = (await issues({ ['n'.repeat(10_000)]: 1 })) as { path: string }[]
  assert.ok(long!.path.length < 200, 'a name is not repeated whatever its length')
})

test('an unknown exception is `internal` 500, is logged whole, and says nothing to the caller', async (t) => {
  const kernel = await testKernel(t, [failing])
  for (const url of ['/bug', '/not-an-error']) {
    const reply = await kernel.listeners.conductor!.inject(url)
    assert.equal(reply.statusCode, 500)
    assert.equal(reply.json().error, 'internal')
    assert.doesNotMatch(reply.body, /hunter2|db\.internal/)
  }
  const logged = kernel.logs.find((line) => JSON.stringify(line).includes('hunter2'))
  assert.equal(logged?.['level'], 50)
  assert.equal(logged?.['route'], '/bug')
})

test('a path nobody serves is 404 not_found in the same shape, and does not repeat the query', async (t) => {
  const { conductor } = (await testKernel(t, [failing])).listeners
  const reply = await conductor!.inject('/nowhere?token=secret')
  assert.equal(reply.statusCode, 404)
  assert.equal(reply.json().error, 'not_found')
  assert.doesNotMatch(reply.body, /secret/)
})

test('a URL that is not valid percent-encoding is 400 in the same shape', async (t) => {
  const { conductor } = (await testKernel(t, [failing])).listeners
  const reply = await conductor!.inject('/item/%zz')
  assert.equal(reply.statusCode, 400)
  assert.equal(reply.json().error, 'invalid_request')
  assert.match(reply.json().message, /percent-encoding/)
  assert.equal(typeof reply.json().request_id, 'string')
})
