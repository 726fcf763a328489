import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type TObject, Type } from '@sinclair/typebox'
import { Base64Secret, BootError, CommaList, definePlugin, Duration, type Entry, Settings } from '#kernel'
import { testKernel } from '#testing'

/** What a plugin with these settings gets when the role file gives it `config`. */
async function decoded(
  t: { after(fn: () => Promise<void>): void },
  schema: TObject,
  config: unknown,
): Promise<unknown> {
  let got: unknown
  const plugin = definePlugin({
    name: 'p',
    config: schema,
    async setup(ctx) {
      got = ctx.config
      return {}
    },
  })
  const entry: Entry = { name: 'p', plugin, config }
  await testKernel(t as never, [entry])
  return got
}

const refuses = (t: never, schema: TObject, config: unknown, sentence: string): Promise<void> =>
  assert.rejects(decoded(t, schema, config), (error: unknown) => {
    assert.ok(error instanceof BootError)
    assert.deepEqual(error.problems, [sentence])
    return true
  })

test('text of the environment becomes numbers, booleans and literals of the schema', async (t) => {
  const schema = Settings({
    size: Type.Integer(),
    ratio: Type.Number(),
    on: Type.Boolean(),
    off: Type.Boolean(),
    backend: Type.Union([Type.Literal('redis'), Type.Literal('memory')]),
    name: Type.String(),
  })
  const config = { size: '12', ratio: '0.5', on: 'true', off: '0', backend: 'redis', name: '007' }
  assert.deepEqual(await decoded(t, schema, config), {
    size: 12,
    ratio: 0.5,
    on: true,
    off: false,
    backend: 'redis',
    name: '007',
  })
})

test('text that is no number or no boolean is refused, not guessed', async (t) => {
  const schema = Settings({ size: Type.Integer({ default: 1 }), on: Type.Boolean({ default: false }) })
  await refuses(t as never, schema, { size: '12 apples' }, 'p: config.size expects integer')
  await refuses(t as never, schema, { on: 'maybe' }, 'p: config.on expects boolean')
})

test('a duration is milliseconds for the plugin, from text and from its default', async (t) => {
  const schema = Settings({ wait: Duration('25s'), retry: Type.Optional(Duration('500ms')) })
  assert.deepEqual(await decoded(t, schema, {}), { wait: 25_000, retry: 500 })
  assert.deepEqual(await decoded(t, schema, { wait: '2m', retry: '1d' }), { wait: 120_000, retry: 86_400_000 })
  const sentence = 'p: config.wait expects a duration such as 500ms, 25s or 5m'
  for (const wait of ['25', '1.5s', '-1s', 25, '']) await refuses(t as never, schema, { wait }, sentence)
})

test('a comma list is an array for the plugin; absent is empty', async (t) => {
  const schema = Settings({ urls: CommaList() })
  assert.deepEqual(await decoded(t, schema, {}), { urls: [] })
  assert.deepEqual(await decoded(t, schema, { urls: 'a, b,,c ' }), { urls: ['a', 'b', 'c'] })
})

test('a secret is a Buffer of at least 32 bytes for the plugin', async (t) => {
  const schema = Settings({ key: Base64Secret(), old: Type.Optional(Base64Secret()) })
  const key = Buffer.alloc(32, 7)
  assert.deepEqual(await decoded(t, schema, { key: key.toString('base64') }), { key })
  assert.deepEqual(await decoded(t, schema, { key: key.toString('base64url') }), { key })
  const sentence = 'p: config.key expects base64 of at least 32 bytes (openssl rand -base64 32)'
  await refuses(t as never, schema, { key: Buffer.alloc(31).toString('base64') }, sentence)
  await refuses(t as never, schema, { key: 'correct horse battery staple correct horse battery' }, sentence)
})

test('settings of one entry are its own: a plugin cannot change what another use of it gets', async (t) => {
  const given = { list: ['a'] }
  const schema = Settings({ list: Type.Array(Type.String()) })
  const got = (await decoded(t, schema, given)) as { list: string[] }
  got.list.push('b')
  assert.deepEqual(given, { list: ['a'] })
})
