import assert from 'node:assert/strict'
import { test } from 'node:test'
import { access, boot, definePlugin } from '#kernel'

const open = definePlugin({
  name: 'open',
  async setup(ctx) {
    ctx.routes('gateway', async (app) => {
      app.get('/open', access('public'), async () => 'here')
    })
    return {}
  },
})

test('a listener with hosts answers requests for those alone, on any port, whatever they ask for', async (t) => {
  const hosts = ['localhost', '[::1]', 'Box.example']
  const listeners = { gateway: { host: '127.0.0.1', port: 0, hosts } }
  const kernel = await boot({ name: 'test', listeners, plugins: [{ name: 'open', plugin: open }] }, { listen: false })
  t.after(() => kernel.stop())
  const ask = async (host: string, url = '/open') => {
    const reply = await kernel.listeners['gateway']!.inject({ url, headers: { host } })
    return { status: reply.statusCode, error: reply.statusCode < 400 ? undefined : reply.json().error, reply }
  }
  for (const host of ['localhost', 'LOCALHOST:8080', '[::1]:1', 'box.example:443']) {
    assert.equal((await ask(host)).status, 200, host)
  }
  for (const host of ['evil.example', 'localhost.evil.example:8080', 'localhost.', '[::2]', '127.0.0.1']) {
    const { status, error, reply } = await ask(host)
    assert.deepEqual([status, error], [421, 'unknown_host'], host)
    assert.equal(typeof reply.json().message, 'string')
    assert.equal(reply.json().request_id, reply.headers['x-request-id'])
  }
  assert.equal((await ask('evil.example', '/none')).status, 421)
  assert.equal((await ask('evil.example', '/openapi.json')).status, 421)
})

test('a listener without hosts answers requests for any', async (t) => {
  const listeners = { gateway: { host: '127.0.0.1', port: 0 } }
  const kernel = await boot({ name: 'test', listeners, plugins: [{ name: 'open', plugin: open }] }, { listen: false })
  t.after(() => kernel.stop())
  const reply = await kernel.listeners['gateway']!.inject({ url: '/open', headers: { host: 'any.example' } })
  assert.equal(reply.statusCode, 200)
})
