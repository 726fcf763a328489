import assert from 'node:assert/strict'
import { test } from 'node:test'
import { entryFrom } from '../import.ts'
import { catalog, failureOf, sentenceOf, stage } from './stage.ts'

/** A server.json in the form of the official registry. */
const weather = {
  $schema: 'https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json',
  name: 'io.github.example/weather',
  description: 'Weather of places.',
  version: '1.2.0',
  repository: { url: 'https://github.com/example/weather', source: 'github' },
  remotes: [
    { type: 'sse', url: 'https://weather.example/sse' },
    { type: 'streamable-http', url: 'https://weather.example/mcp' },
  ],
}
const wanting = {
  name: 'com.example/crm',
  remotes: [
    {
      type: 'streamable-http',
      url: 'https://{region}.crm.example/mcp',
      variables: { region: { isRequired: true } },
      headers: [
        { name: 'X-API-Key', isRequired: true, isSecret: true },
        { name: 'X-Tenant', value: 'tenant {tenant}', variables: { tenant: { default: 'main' } } },
        { name: 'X-Debug' },
      ],
    },
  ],
}

test('a server.json becomes an entry: the remote that speaks streamable HTTP, or else SSE', async (t) => {
  const { call } = await stage(t)
  const made = await call('POST', `${catalog}/import`, weather)
  assert.equal(made.status, 201)
  const { name, url, transport, description, managedBy, active } = made.body
  assert.deepEqual(
    { name, url, transport, description, managedBy, active },
    {
      name: 'weather',
      url: 'https://weather.example/mcp',
      transport: 'streamable-http',
      description: 'Weather of places.',
      managedBy: 'user',
      active: true,
    },
  )
  assert.deepEqual(failureOf(await call('POST', `${catalog}/import`, weather)), [409, 'conflict'])
  // The answer of a registry, with the fields that the tenant adds.
  const named = { name: 'old', server: { ...weather, remotes: [weather.remotes[0]] }, active: false, _meta: {} }
  const old = await call('POST', `${catalog}/import`, named)
  assert.deepEqual([old.body['name'], old.body['transport'], old.body['active']], ['old', 'sse', false])
})

test('what a server.json leaves open is asked for, and secrets are references', async (t) => {
  const { call } = await stage(t)
  const refused = await call('POST', `${catalog}/import`, wanting)
  assert.deepEqual(failureOf(refused), [400, 'not_importable'])
  assert.match(sentenceOf(refused), /headers\.X-API-Key, variables\.region/)
  const filled = (key: string, more: object = {}) =>
    call('POST', `${catalog}/import`, {
      server: wanting,
      headers: { 'x-api-key': key, ...more },
      variables: { region: 'eu' },
    })
  assert.match(sentenceOf(await filled('plain')), /'X-API-Key' is a secret/)
  assert.match(sentenceOf(await filled('secret://crm', { 'x-else': 'x' })), /does not ask for a header 'x-else'/)
  assert.deepEqual(failureOf(await filled('secret://crm')), [400, 'unknown_secret: crm'])
  await call('POST', '/api/secrets', { name: 'crm', value: 'k' })
  const { body } = await filled('secret://crm')
  assert.equal(body['url'], 'https://eu.crm.example/mcp')
  assert.deepEqual(body['headers'], { 'X-API-Key': 'secret://crm', 'X-Tenant': '********' })
})

test('what cannot be reached by a URL is refused with a sentence, and so is what is no server.json', async (t) => {
  const { call } = await stage(t)
  const { remotes: _, ...bare } = weather
  const cases: [object, RegExp][] = [
    [{ ...bare, packages: [{ registryType: 'npm', identifier: 'weather' }] }, /packages alone/],
    [bare, /no `remotes`/],
    [{ ...bare, remotes: [{ type: 'stdio', url: 'x' }] }, /neither streamable-http nor sse/],
    [{ ...weather, name: 'io.github.example/' }, /needs a name of its own/],
    [{ name: 'a b', server: weather }, /needs a name of its own/],
    [{ ...bare, remotes: [{ type: 'sse', url: 'http://10.0.0.1/' }] }, /body\/url must be an https URL/],
    [{ ...weather, remotes: 'x' }, /remotes/],
    [{}, /no `remotes`/],
  ]
  for (const [body, sentence] of cases) {
    const answer = await call('POST', `${catalog}/import`, body)
    assert.equal(answer.status, 400, JSON.stringify(body))
    assert.match(JSON.stringify(answer.body), sentence)
  }
})

test('variables cannot make a small server.json a large entry, and each value of a variable is checked', async (t) => {
  const multiplied = <Of extends object>(variables: Of) => ({
    name: 'a/big',
    remotes: [
      {
        type: 'sse',
        url: 'https://weather.example/sse',
        headers: [{ name: 'X-Big', value: '{a}'.repeat(2_500), variables }],
      },
    ],
  })
  const large = { a: { value: 'x'.repeat(8_000) } }
  // Twenty megabytes would be made before an entry of them is refused.
  assert.throws(() => entryFrom(multiplied(large), 32 * 1024), { code: 'limit_exceeded' })
  const fits = entryFrom(multiplied({ a: { value: 'xy' } }), 32 * 1024)
  assert.equal(fits.headers!['X-Big'], 'xy'.repeat(2_500))
  const { call } = await stage(t)
  const refused = await call('POST', `${catalog}/import`, multiplied(large))
  assert.deepEqual([refused.status, refused.body['limit']], [409, 'mcpEntryBytes'])
  for (const variables of [{ a: { value: 'x'.repeat(8_001) } }, { a: { default: 1 } }, { 'a\n': { value: 'x' } }])
    assert.deepEqual(failureOf(await call('POST', `${catalog}/import`, multiplied(variables))), [
      400,
      'invalid_request',
    ])
  const odd = { server: multiplied({}), headers: { 'X\n': 1 } }
  assert.deepEqual(failureOf(await call('POST', `${catalog}/import`, odd)), [400, 'invalid_request'])
})
