import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { access, boot, definePlugin, judgeOrigins } from '#kernel'

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

test('a listener without hosts answers requests for any, unless only this machine reaches it', async (t) => {
  for (const [host, name, status] of [
    ['0.0.0.0', 'any.example', 200],
    ['127.0.0.1', 'any.example', 421],
    ['127.0.0.1', 'localhost:1', 200],
    ['localhost', '127.0.0.1', 200],
    ['::1', 'any.example', 421],
  ] as const) {
    const listeners = { gateway: { host, port: 0 } }
    const kernel = await boot({ name: 'test', listeners, plugins: [{ name: 'open', plugin: open }] }, { listen: false })
    t.after(() => kernel.stop())
    const reply = await kernel.listeners['gateway']!.inject({ url: '/open', headers: { host: name } })
    assert.equal(reply.statusCode, status, `${name} at ${host}`)
  }
})

const booted = async (t: TestContext, settings: object, who = 'public') => {
  const plugin = definePlugin({
    name: 'open',
    async setup(ctx) {
      ctx.routes('runner', async (app) => {
        app.get('/open', access(who), async () => 'here')
        app.post('/open', access(who), async () => 'done')
        await app.register(async (scope) => {
          judgeOrigins(scope)
          scope.post('/judged', access(who), async () => 'done')
        })
      })
      return {}
    },
  })
  const listeners = { runner: { host: '127.0.0.1', port: 0, ...settings } }
  const kernel = await boot({ name: 'test', listeners, plugins: [{ name: 'open', plugin }] }, { listen: false })
  t.after(() => kernel.stop())
  return async (headers: Record<string, string>, method: 'GET' | 'POST' = 'GET', url = '/open') => {
    const reply = await kernel.listeners['runner']!.inject({ method, url, headers })
    return [reply.statusCode, reply.statusCode < 400 ? undefined : reply.json().error]
  }
}

test('where a route asks for no proof a listener without hosts answers to localhost and addresses: no page comes under those', async (t) => {
  const ask = await booted(t, {}, 'network')
  for (const host of ['localhost:1', '10.0.0.7:7060', '[fe80::1]:7060', '[::ffff:10.0.0.7]']) {
    assert.deepEqual(await ask({ host }), [200, undefined], host)
  }
  for (const host of ['evil.example', 'runner.internal:7060', '10.0.0.7.evil.example', '0x7f.1', '127.1']) {
    assert.deepEqual(await ask({ host }), [421, 'unknown_host'], host)
  }
})

test('hosts are names, domains with a dot before them, addresses, networks, and the hosts of URLs', async (t) => {
  const hosts = ['.corp.example, box', '10.0.0.0/8', 'http://Runner.internal:7060/base', 'http://[fd00::7]:7060']
  const ask = await booted(t, { hosts }, 'network')
  for (const host of ['corp.example', 'a.corp.example:1', 'box', '10.255.0.1', 'runner.internal', '[fd00:0::7]:1']) {
    assert.deepEqual(await ask({ host }), [200, undefined], host)
  }
  for (const host of ['evilcorp.example', 'localhost', '11.0.0.1', '10.evil.example', '[fd00::8]', 'http']) {
    assert.deepEqual(await ask({ host }), [421, 'unknown_host'], host)
  }
})

test('a page of another origin is refused, whatever it sends; one of the host that is asked, or of `origins`, is not', async (t) => {
  const ask = await booted(t, {
    hosts: ['localhost'],
    origins: ['https://console.example', 'http://a.example:1, vscode://x'],
  })
  const refused = [403, 'origin_not_allowed']
  for (const origin of ['http://localhost:80', 'https://console.example', 'http://a.example:1', 'vscode://x']) {
    assert.deepEqual(await ask({ host: 'localhost:80', origin }, 'POST'), [200, undefined], origin)
  }
  for (const origin of ['null', '', 'http://localhost', 'http://localhost:81', 'http://console.example', 'file://']) {
    for (const method of ['GET', 'POST'] as const) {
      assert.deepEqual(await ask({ host: 'localhost:80', origin }, method), refused, `${method} from ${origin}`)
    }
    assert.deepEqual(await ask({ host: 'localhost:80', origin }, 'POST', '/judged'), [200, undefined])
  }
  assert.deepEqual(await ask({ host: 'evil.example', origin: 'http://evil.example' }, 'POST'), [421, 'unknown_host'])
  assert.deepEqual(await ask({ host: 'localhost:80' }, 'POST'), [200, undefined], 'what is no browser names none')
})
