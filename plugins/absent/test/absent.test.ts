import assert from 'node:assert/strict'
import { test } from 'node:test'
import { access, definePlugin } from '#kernel'
import { ApiGuard, type Guard } from '#contracts/auth'
import { fake, testKernel } from '#testing'
import absent from '../index.ts'

const guard = fake(ApiGuard, {
  protect() {},
  callerOf: () => ({ tenantId: 'acme', role: 'member', keyId: 'tak_test' }),
} as Guard)

test('without its plugin a capability answers with nothing, or says what is missing', async (t) => {
  const { listeners } = await testKernel(t, [guard, absent])
  const get = async (url: string) => {
    const answer = await listeners['conductor']!.inject({ method: 'GET', url })
    return [answer.statusCode, answer.json<unknown>()]
  }
  assert.deepEqual(await get('/api/storage'), [200, { configured: false }])
  for (const list of ['/api/skills', '/api/mcp/catalog', '/api/apps', '/api/workflows/runs'])
    assert.deepEqual(await get(list), [200, []], list)
  for (const [path, plugin] of [
    ['/api/secrets', 'secrets'],
    ['/api/storage/objects/a/b', 'storage'],
    ['/api/profiles/writer/memories/search?q=x', 'memory'],
    ['/api/profiles/writer/memories/mem_1/history', 'memory'],
    ['/api/billing/wallet', 'billing'],
    ['/api/workflows/runs/wfrun_1', 'workflows'],
  ]) {
    const [status, body] = (await get(path!)) as [number, { error: string; message: string }]
    assert.equal(status, 503, path)
    assert.equal(body.error, 'not_configured')
    assert.equal(body.message, `The plugin '${plugin}' is not in the role file of this conductor.`)
  }
  const write = await listeners['conductor']!.inject({ method: 'PUT', url: '/api/secrets/x', body: { value: 'y' } })
  assert.equal(write.statusCode, 503)
})

test('a capability that is there answers for itself', async (t) => {
  const secrets = definePlugin({
    name: 'secrets',
    async setup({ routes }) {
      routes('conductor', async (app) => {
        app.get('/api/secrets', access('public'), async () => ['kept'])
      })
      return {}
    },
  })
  const { listeners } = await testKernel(t, [guard, secrets, absent])
  const inject = (method: 'GET' | 'POST') => listeners['conductor']!.inject({ method, url: '/api/secrets' })
  assert.deepEqual((await inject('GET')).json(), ['kept'])
  assert.equal((await inject('POST')).statusCode, 404)
})
