import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { Value } from '@sinclair/typebox/value'
import { definePlugin, isAppError } from '#kernel'
import { Egress, EgressEntry } from '#contracts/egress'
import { Secrets, secretsIn } from '#contracts/secrets'
import { fake, testKernel } from '#testing'
import egress from '../index.ts'

/** The plugin, and a tenant `acme` with the secret `github`. */
async function egressWith(t: Pick<TestContext, 'after'>, config: object = {}, over: Partial<Secrets> = {}) {
  const found: Egress[] = []
  const readers: string[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { egress: Egress },
    setup: async ({ deps }) => (found.push(deps.egress), {}),
  })
  const secrets: Secrets = {
    unknown: async (_tenant, names) => names.filter((name) => name !== 'github'),
    resolve: () => assert.fail('headers are asked for'),
    async headers(tenant, headers, reader) {
      readers.push(`${tenant} ${reader}`)
      return Object.fromEntries(Object.entries(headers).map(([name, text]) => [name, `plain ${secretsIn(text)[0]}`]))
    },
    ...over,
  }
  await testKernel(t, [{ name: 'egress', plugin: egress, config }, fake(Secrets, secrets), probe], { listeners: [] })
  const check = async (entry: EgressEntry, tenantId = 'acme', workerMode: 'static' | 'sandbox' = 'sandbox') => {
    try {
      await found[0]!.check(tenantId, { egress: [entry], workerMode })
      return 'ok'
    } catch (error) {
      if (!isAppError(error)) throw error
      return `${error.code}: ${error.sentence}`
    }
  }
  return { egress: found[0]!, check, readers }
}

test('public hosts may be named by every tenant, unless the role file says which hosts and whose', async (t) => {
  const open = await egressWith(t)
  for (const host of ['api.github.com', 'API.github.com:8443', '*.example.com', '1.1.1.1', '[2606:4700::1111]:443'])
    assert.equal(await open.check({ host }), 'ok', host)
  const bounded = await egressWith(t, { tenants: ['acme'], hosts: ['api.github.com, .example.com'] })
  for (const host of ['api.github.com', 'x.example.com', '*.example.com', 'example.com:444'])
    assert.equal(await bounded.check({ host }), 'ok', host)
  for (const host of ['github.com', '*.api.github.com', 'badexample.com', '*.com.example'])
    assert.match(
      await bounded.check({ host }),
      /^invalid_egress: .* is not one of the hosts that this installation allows/,
      host,
    )
  assert.match(
    await bounded.check({ host: 'api.github.com' }, 'globex'),
    /^invalid_egress: Sandboxes of this tenant may reach no hosts/,
  )
  assert.match(
    await bounded.check({ host: 'api.github.com' }, 'acme', 'static'),
    /^invalid_egress: .*workerMode: sandbox/,
  )
})

test('a private host has to be allowed by the operator, with its port and its tenants; metadata never is', async (t) => {
  const ownHosts = ['10.0.0.7:8443=acme, 169.254.169.254:80=*, .corp.example:443=*', 'one.corp.test:443=acme']
  const { egress: plugin, check } = await egressWith(t, { ownHosts, hosts: ['api.github.com'] })
  for (const host of ['10.0.0.7:8443', 'git.corp.example', '*.corp.example', 'one.corp.test'])
    assert.equal(await check({ host }), 'ok', host)
  for (const host of [
    '10.0.0.7',
    '10.0.0.8:8443',
    '127.0.0.1:1',
    '[::1]:1',
    '[::ffff:a00:7]:8443',
    '169.254.169.254:80',
  ])
    assert.match(await check({ host }), /^invalid_egress: .* is private, .*ownHosts/, host)
  assert.match(await check({ host: '10.0.0.7:8443' }, 'globex'), /is private/)
  // Permission for a host does not include the hosts below it.
  assert.match(await check({ host: '*.one.corp.test' }), /is not one of the hosts/)
  const { hosts } = await plugin.resolve('acme', [{ host: '10.0.0.7:8443' }, { host: 'api.github.com' }])
  assert.deepEqual(
    hosts.map(({ host, port, own }) => [host, port, own]),
    [
      ['10.0.0.7', 8443, true],
      ['api.github.com', 443, false],
    ],
  )
})

test('what reads in more than one way is refused: hosts, paths, headers', async (t) => {
  const { check } = await egressWith(t)
  for (const host of [
    '0x7f.1',
    '2130706433',
    '127.1',
    'a..b',
    '-a.test',
    'a.test:0',
    'a.test:65536',
    '*.com',
    '*',
    'a.*.test',
  ]) {
    const entry = { host }
    const said = Value.Check(EgressEntry, entry) ? await check(entry) : 'invalid_egress by its form'
    assert.match(said, /^invalid_egress/, host)
  }
  const host = 'api.test'
  for (const path of ['/a/../b', '/a/.', '/%2e%2e/b', '/a%5cb', '/a;b', '/a//b', '/%252e'])
    assert.match(await check({ host, paths: ['/fine', path] }), /^invalid_egress: .* has the path/, path)
  for (const path of ['a', '/a?b', '/a#b', '/a\\b', '/a b', '/ä'])
    assert.equal(Value.Check(EgressEntry, { host, paths: [path] }), false, path)
  for (const name of [
    'Host',
    'connection',
    'proxy-authorization',
    'Content-Length',
    'transfer-encoding',
    'accept-encoding',
  ])
    assert.match(await check({ host, headers: { [name]: 'x' } }), /^invalid_egress: .* may not set the header/, name)
  assert.match(await check({ host, headers: { 'a b': 'x' } }), /^invalid_egress/)
  assert.match(await check({ host, headers: { a: 'x\r\nb: y' } }), /^invalid_egress/)
  assert.match(await check({ host, headers: { a: 'x', A: 'y' } }), /^invalid_egress: .* twice/)
  assert.match(await check({ host: '*.api.test', headers: { a: 'x' } }), /^invalid_egress: .* takes no headers/)
  for (const method of ['TRACE', 'CONNECT', 'get'])
    assert.equal(Value.Check(EgressEntry, { host, methods: [method] }), false, method)
})

test('secrets are named when the profile is written, and resolved for each attempt, for the host that is sent them', async (t) => {
  const { egress: plugin, check, readers } = await egressWith(t, { hosts: ['api.test'] })
  const entry = (name: string) => ({ host: 'API.test', headers: { authorization: `Bearer secret://${name}` } })
  assert.equal(await check(entry('github')), 'ok')
  assert.match(await check(entry('nobodys')), /^unknown_secret: nobodys: The host 'API.test' of egress/)
  assert.match(await check(entry('')), /^invalid_ref/)
  // An entry that the operator no longer allows is left out, and its secret is not resolved.
  const order = await plugin.resolve('acme', [entry('github'), { ...entry('other'), host: 'gone.test' }])
  assert.deepEqual(order, {
    hosts: [{ host: 'api.test', port: 443, own: false, headers: { authorization: 'Bearer secret://github' } }],
    secrets: { github: 'plain github' },
  })
  assert.deepEqual(readers, ['acme egress/api.test'])

  const many = (count: number) =>
    Object.fromEntries(Array.from({ length: count }, (_, n) => [`x-${n}`, `secret://s${n}`]))
  assert.match(await check({ host: 'api.test', headers: many(9) }), /^invalid_egress: .* more than 8 secrets/)
  const hosts = Array.from({ length: 7 }, (_, of) => ({
    host: `api.test:${of + 1}`,
    headers: Object.fromEntries(Object.entries(many(8)).map(([name, text]) => [name, `${text}-${of}`])),
  }))
  await assert.rejects(plugin.check('acme', { egress: hosts, workerMode: 'sandbox' }), /more than 50 secrets/)
  const long = { headers: async () => ({ github: 'x'.repeat(16_385) }) }
  const other = await egressWith(t, {}, long)
  await assert.rejects(other.egress.resolve('acme', [entry('github')]), { code: 'secret_unfit' })
  const short = await egressWith(t, {}, { headers: async () => ({ github: '1234567' }) })
  await assert.rejects(short.egress.resolve('acme', [entry('github')]), /less than 8 characters/)
})
