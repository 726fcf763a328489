import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Type } from '@sinclair/typebox'
import { BootError, capability, definePlugin, type Entry, maybe, plan, type Plugin, Settings, slot } from '#kernel'

const A = capability<string>('test.a')
const B = capability<string>('test.b')
const Things = slot<string>('test.things')

const setup = async (): Promise<never> => assert.fail('plan runs nothing')
const entries = (...plugins: Plugin[]): Entry[] => plugins.map((plugin) => ({ name: plugin.name, plugin }))
const makesA = definePlugin({ name: 'makes-a', provides: { a: A }, setup })
const needsA = definePlugin({ name: 'needs-a', requires: { a: A }, setup })

const planned = (plugins: Entry[]): string[] => plan({ name: 'test', listeners: {}, plugins }).map((e) => e.name)
const problemsOf = (plugins: Entry[]): readonly string[] => {
  try {
    planned(plugins)
  } catch (error) {
    assert.ok(error instanceof BootError)
    return error.problems
  }
  return []
}

test('start order comes from capabilities, not from the order of the file', () => {
  assert.deepEqual(planned(entries(needsA, makesA)), ['makes-a', 'needs-a'])
  assert.deepEqual(planned(entries(makesA, needsA)), ['makes-a', 'needs-a'])
})

test('every contributor of a slot starts before who reads it', () => {
  const one = definePlugin({ name: 'one', provides: { t: Things }, setup })
  const two = definePlugin({ name: 'two', provides: { t: Things }, setup })
  const reads = definePlugin({ name: 'reads', requires: { t: Things }, setup })
  assert.deepEqual(planned(entries(reads, one, two)), ['one', 'two', 'reads'])
  assert.deepEqual(planned(entries(reads)), ['reads'], 'a slot may be empty')
})

test('a capability taken with maybe() may be left out, and is ordered when it is there', () => {
  const likesA = definePlugin({ name: 'likes-a', requires: { a: maybe(A) }, setup })
  assert.deepEqual(planned(entries(likesA)), ['likes-a'])
  assert.deepEqual(planned(entries(likesA, makesA)), ['makes-a', 'likes-a'])
})

test('every problem of a role is reported at once', () => {
  const picky = definePlugin({
    name: 'picky',
    config: Settings({ dsn: Type.String(), size: Type.Integer({ default: 10 }) }),
    requires: { b: B },
    setup,
  })
  const problems = problemsOf([
    ...entries(needsA, makesA),
    { name: 'again', plugin: makesA },
    { name: 'picky', plugin: picky, config: { size: 'many', sice: 1 } },
    { name: 'picky', plugin: picky, config: { dsn: 'x' } },
  ])
  assert.deepEqual([...problems].sort(), [
    "again: 'test.a' is already provided by makes-a; remove one of them",
    'picky: config.dsn is required',
    'picky: config.sice is not a setting here; known: dsn, size',
    'picky: config.size expects integer',
    'picky: listed twice',
    "picky: nothing in this role provides 'test.b'; add a plugin that does",
  ])
})

test('a cycle is shown with the way around it', () => {
  const a = definePlugin({ name: 'a', provides: { a: A }, requires: { b: B }, setup })
  const b = definePlugin({ name: 'b', provides: { b: B }, requires: { a: A }, setup })
  assert.deepEqual(problemsOf(entries(a, b)), ['cycle: a -> b -> a'])
})

test('a plugin of another api version is refused by name, and nothing else of it is looked at', () => {
  const old = { ...needsA, name: 'old', api: 2 } as unknown as Plugin
  assert.deepEqual(problemsOf(entries(old)), ['old: speaks plugin api 2, this kernel speaks 1; update the plugin'])
})

test('a setting that is wrong names its file and line and the variables that may fill it', () => {
  const plugin = definePlugin({ name: 'p', config: Settings({ url: Type.String() }), requires: { a: A }, setup })
  const where = (path: string) => ({ at: `config/x.yaml:${path === '/url' ? 7 : 6}`, variables: ['MAIN_URL', 'URL'] })
  assert.deepEqual(problemsOf([{ name: 'p', plugin, config: {}, where }]), [
    'p: config.url is required; set MAIN_URL or URL (config/x.yaml:7)',
    "p: nothing in this role provides 'test.a'; add a plugin that does (config/x.yaml:6)",
  ])
})

test('a sentence about a setting says what is expected and never what was given', () => {
  const config = Settings({
    backend: Type.Union([Type.Literal('redis'), Type.Literal('memory')]),
    token: Type.String({ pattern: '^ok$', expects: 'a token of ours' }),
    port: Type.Integer({ maximum: 65_535 }),
  })
  const plugin = definePlugin({ name: 'p', config, setup })
  const given = { backend: 's3cret', token: 's3cret', port: 99_999 }
  const problems = problemsOf([{ name: 'p', plugin, config: given }])
  assert.deepEqual(problems, [
    'p: config.backend expects one of redis, memory',
    'p: config.token expects a token of ours',
    'p: config.port expects integer to be less or equal to 65535',
  ])
})
