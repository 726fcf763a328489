import assert from 'node:assert/strict'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { BootError, plan, type Role } from '#kernel'
import { type Environment, loadRole } from '../config.ts'

const kernel = JSON.stringify(import.meta.resolve('#kernel'))
const typebox = JSON.stringify(import.meta.resolve('@sinclair/typebox'))
const pluginText = `
import { definePlugin } from ${kernel}
import { Type } from ${typebox}
const config = Type.Object({ url: Type.Optional(Type.String()) }, { additionalProperties: false })
export default definePlugin({ name: 'p', config, setup: async () => ({}) })`
const anySettings = pluginText.replace('false', 'true').replace('url', 'anything')

/** A folder of its own with the given files; returns a loader for `role.yaml` in it. */
async function folder(t: TestContext, files: Record<string, string>) {
  const path = await mkdtemp(join(tmpdir(), 'agent-orc-config-'))
  t.after(() => rm(path, { recursive: true, force: true }))
  for (const [name, text] of Object.entries(files)) {
    await mkdir(join(path, name, '..'), { recursive: true })
    await writeFile(join(path, name), text)
  }
  const file = join(path, 'role.yaml')
  const load = (env: Environment = {}, instead = false): Promise<Role> => loadRole(file, { env, instead })
  /** The problems of loading and planning, with the folder taken out of them. */
  const problems = async (env: Environment = {}): Promise<string[]> => {
    try {
      plan(await load(env))
      return []
    } catch (error) {
      assert.ok(error instanceof BootError, String(error))
      return error.problems.map((p) => p.replaceAll(`${path}/`, '').replaceAll(path, ''))
    }
  }
  return { file, load, problems }
}

/** A role with one plugin `p` of any settings, whose config is the given YAML lines. */
const one = (...lines: string[]): Record<string, string> => ({
  'role.yaml': ['role: test', 'plugins:', '  p:', '    use: ./p.mjs', ...lines.map((l) => `    ${l}`)].join('\n'),
  'p.mjs': anySettings,
})

test('${A|B:-x} is the first of A and B that is set and not empty, else x', async (t) => {
  const { load } = await folder(t, one('url: ${A|B:-x}'))
  const url = async (env: Environment): Promise<unknown> => (await load(env)).plugins[0]!.config
  assert.deepEqual(await url({ A: 'a', B: 'b' }), { url: 'a' })
  assert.deepEqual(await url({ A: '', B: 'b' }), { url: 'b' })
  assert.deepEqual(await url({}), { url: 'x' })
})

test('a setting whose whole value comes out empty is dropped; one that is written empty is kept', async (t) => {
  const { load } = await folder(
    t,
    one('a: ${A}', 'b: ${B:-}', 'c: ""', 'd:', 'list: ["${A}", "${C}"]', 'deep:', '  x: ${A}', '  y: 1'),
  )
  assert.deepEqual((await load({ C: 'c' })).plugins[0]!.config, { c: '', list: ['c'], deep: { y: 1 } })
})

test('a substitution inside longer text works, and $${ is a literal ${', async (t) => {
  const { load } = await folder(t, one('a: http://${HOST}:${PORT:-80}/x', 'b: $${HOST}', 'c: "${HOST}$${X}"'))
  assert.deepEqual((await load({ HOST: 'h' })).plugins[0]!.config, { a: 'http://h:80/x', b: '${HOST}', c: 'h${X}' })
})

test('text from the environment is never read again as a substitution or as YAML', async (t) => {
  const { load } = await folder(t, one('a: ${A}'))
  const A = '${SECRET}: [x, {y: #z'
  assert.deepEqual((await load({ A, SECRET: 's' })).plugins[0]!.config, { a: A })
})

test('values written in the file keep their YAML types', async (t) => {
  const { load } = await folder(t, one('n: 5', 'f: 0.5', 'b: true', 's: "5"', 'l: [1, two]'))
  assert.deepEqual((await load()).plugins[0]!.config, { n: 5, f: 0.5, b: true, s: '5', l: [1, 'two'] })
})

test('listeners: ports from text, loopback unless said, off when the port comes out empty', async (t) => {
  const text = `role: test
listeners:
  gateway:
    host: 0.0.0.0
    port: \${PORT:-8090}
  internal:
    port: \${INTERNAL_PORT}
  bare:
plugins: {}
`
  const { load } = await folder(t, { 'role.yaml': text })
  const { listeners } = await load({ PORT: '9000' })
  const shapes = Object.entries(listeners).map(([name, { host, port }]) => [name, host, port])
  assert.deepEqual(shapes, [
    ['gateway', '0.0.0.0', 9000],
    ['internal', '127.0.0.1', undefined],
    ['bare', '127.0.0.1', undefined],
  ])
  assert.match(listeners['gateway']!.origin!.at, /role\.yaml:5$/)
  assert.deepEqual(listeners['gateway']!.origin!.variables, ['PORT'])
})

test('hosts of a listener are names without a port, at least one; one that comes out empty is left out', async (t) => {
  const role = (hosts: string) => ({
    'role.yaml': `role: test\nlisteners:\n  gateway:\n    hosts: ${hosts}\nplugins: {}\n`,
  })
  const { load } = await folder(t, role("[localhost, '[::1]', '${MORE}']"))
  assert.deepEqual((await load()).listeners['gateway']!.hosts, ['localhost', '[::1]'])
  assert.deepEqual((await load({ MORE: 'box.example' })).listeners['gateway']!.hosts?.at(-1), 'box.example')
  const wrong = await folder(t, role("['${MORE}']"))
  assert.deepEqual(await wrong.problems({ MORE: 'x:80' }), [
    'listeners.gateway.hosts.0 expects a host name or address without a port, a network such as 10.0.0.0/8, or a URL whose host is meant; set MORE (role.yaml:4)',
  ])
  assert.equal((await wrong.problems()).length, 1)
  // One variable alone, which is a list or nothing.
  const alone = await folder(t, role('${MORE}'))
  assert.equal((await alone.load()).listeners['gateway']!.hosts, undefined)
  assert.deepEqual((await alone.load({ MORE: 'a, b' })).listeners['gateway']!.hosts, ['a, b'])
})

test('log and shutdownGrace have defaults, and are checked', async (t) => {
  const { load } = await folder(t, { 'role.yaml': 'role: test\nlog:\n  requests: ${R}\nplugins: {}' })
  const role = await load({ R: 'true' })
  assert.deepEqual(role.log, { level: 'info', requests: true })
  assert.equal(role.shutdownGrace, 25_000)
  const wrong = await folder(t, {
    'role.yaml': 'role: test\nlog:\n  level: ${LOG_LEVEL}\nshutdownGrace: ${GRACE}\nplugins: {}',
  })
  assert.deepEqual(await wrong.problems({ LOG_LEVEL: 'loud', GRACE: '25' }), [
    'log.level expects one of trace, debug, info, warn, error, fatal, silent; set LOG_LEVEL (role.yaml:3)',
    'shutdownGrace expects a duration such as 500ms, 25s or 5m; set GRACE (role.yaml:4)',
  ])
})

test('unknown keys at every level are refused with file and line, all at once', async (t) => {
  const text = `role: test
listners: {}
listeners:
  gateway:
    prot: 1
log:
  colour: true
plugins:
  p:
    use: ./p.mjs
    urll: x
`
  const { problems } = await folder(t, { 'role.yaml': text, 'p.mjs': pluginText })
  assert.deepEqual(await problems(), [
    'listners is not a setting here; known: role, listeners, log, preload, shutdownGrace, instead, plugins (role.yaml:2)',
    'listeners.gateway.prot is not a setting here; known: host, port, orFree, hosts, origins, tls (role.yaml:5)',
    'log.colour is not a setting here; known: level, requests (role.yaml:7)',
    'p: config.urll is not a setting here; known: url (role.yaml:11)',
  ])
})

test('an unknown setting of a plugin is refused with its line, together with what is wrong elsewhere', async (t) => {
  const text = 'role: test\nplugins:\n  p:\n    use: ./p.mjs\n    urll: ${URL}\n'
  const sentence = 'p: config.urll is not a setting here; known: url; set URL (role.yaml:5)'
  const alone = await folder(t, { 'role.yaml': text, 'p.mjs': pluginText })
  assert.deepEqual(await alone.problems({ URL: 'x' }), [sentence])
  const more = await folder(t, { 'role.yaml': `${text}  q:\n    use: ./gone\n`, 'p.mjs': pluginText })
  const found = await more.problems({ URL: 'x' })
  assert.equal(found.length, 2)
  assert.ok(found.includes(sentence))
})

test('several plugins that are missing or are none are all reported, with where each was looked for', async (t) => {
  const text = `role: test
plugins:
  nosuch:
  sibling:
    use: ./gone
  far:
    use: runtimes/none
  pack:
    use: '@acme/agent-orc-none'
  data:
    use: ./data.mjs
  broken:
    use: ./broken.mjs
  schema:
    use: ./schema.mjs
`
  const { problems } = await folder(t, {
    'role.yaml': text,
    'data.mjs': 'export default { hello: 1 }',
    'broken.mjs': 'import "no-such-library"',
    'schema.mjs': 'export default { api: 1, name: "x", config: { type: "object" }, setup() {} }',
  })
  const found = await problems()
  assert.equal(found.length, 7)
  assert.match(found[0]!, /^nosuch: 'plugins\/nosuch' is not there: looked for .+plugins\/nosuch .+\(role\.yaml:3\)$/)
  assert.match(found[1]!, /^sibling: '\.\/gone' is not there: looked for gone .+\(role\.yaml:4\)$/)
  assert.match(found[2]!, /^far: 'runtimes\/none' is not there: .+\(role\.yaml:6\)$/)
  assert.match(found[3]!, /^pack: '@acme\/agent-orc-none' is not an installed package: .+\(role\.yaml:8\)$/)
  assert.match(found[4]!, /^data: '\.\/data\.mjs' is not a plugin: its default export .+\(role\.yaml:10\)$/)
  assert.match(found[5]!, /^broken: '\.\/broken\.mjs' fails to load: .*no-such-library.+\(role\.yaml:12\)$/)
  assert.equal(found[6], "schema: './schema.mjs' declares settings that are not a TypeBox schema (role.yaml:14)")
})

test('use finds a file, a folder with an index, a package beside the role file, and plugins/<key> without it', async (t) => {
  const text = `role: test
plugins:
  health:
  also-health:
    use: plugins/health
  file:
    use: ./p.mjs
  folder:
    use: ./sub
  package:
    use: acme-plugin
`
  const { load } = await folder(t, {
    'role.yaml': text,
    'p.mjs': pluginText,
    'sub/index.ts': pluginText,
    'node_modules/acme-plugin/package.json': '{"name":"acme-plugin","type":"module","exports":"./main.js"}',
    'node_modules/acme-plugin/main.js': pluginText,
  })
  const role = await load()
  assert.deepEqual(
    role.plugins.map((e) => [e.name, e.plugin.name]),
    [
      ['health', 'health'],
      ['also-health', 'health'],
      ['file', 'p'],
      ['folder', 'p'],
      ['package', 'p'],
    ],
  )
})

test('text that is not YAML, a key given twice, and an alias are refused with their line', async (t) => {
  const problemsOf = async (text: string): Promise<string[]> => (await folder(t, { 'role.yaml': text })).problems()
  assert.deepEqual(await problemsOf('role: test\nplugins:\n  a:\n  b:\n  a:\n'), [
    "'a' is in its map twice (role.yaml:5)",
  ])
  const [broken] = await problemsOf('role: test\nplugins: {health\n')
  assert.match(broken!, /^not valid YAML: .+ \(role\.yaml:\d\)$/)
  assert.deepEqual(await problemsOf('role: &r test\nplugins:\n  a: *r\n'), [
    'anchors and aliases are not read in role files: write the value out (role.yaml:3)',
  ])
  assert.deepEqual(await problemsOf('role: test\nplugins:\n  a:\n    x: ${A-b}\n'), [
    '${A-b} is not of the form ${NAME}, ${NAME|OTHER} or ${NAME:-default} (role.yaml:4)',
  ])
  assert.deepEqual(await problemsOf(''), ['role is required (role.yaml:1)', 'plugins is required (role.yaml:1)'])
})

test('only what a command needs of a role is loaded', async (t) => {
  const { file } = await folder(t, {
    'role.yaml': 'role: test\nplugins:\n  p:\n    use: ./p.mjs\n  broken:\n    use: ./nowhere.mjs\n',
    'p.mjs': anySettings,
  })
  const { plugins } = await loadRole(file, { env: {}, only: ['p'] })
  assert.deepEqual(
    plugins.map(({ name }) => name),
    ['p'],
  )
})

test('a file that is not there is one sentence', async () => {
  await assert.rejects(loadRole('/nowhere/role.yaml', { env: {} }), (error: unknown) => {
    assert.ok(error instanceof BootError)
    assert.deepEqual(error.problems, ['there is no such file'])
    return true
  })
})

test('a secret that does not fit is named by its variable and never shown', async (t) => {
  const { load } = await folder(t, {
    'role.yaml':
      'role: ${ROLE}\nlisteners:\n  gateway:\n    port: ${PORT}\nplugins:\n  tokens:\n    use: plugins/auth/tokens\n    pepper: ${AGENT_API_KEY_PEPPER}\n',
  })
  const env = { ROLE: 'S3CRET', PORT: 's3cret', AGENT_API_KEY_PEPPER: 's3cret' }
  await assert.rejects(load(env), (error: unknown) => {
    assert.ok(error instanceof BootError)
    assert.equal(error.problems.length, 3)
    assert.doesNotMatch(`${error.message} ${JSON.stringify(error)}`, /s3cret/i)
    assert.match(error.message, /set AGENT_API_KEY_PEPPER/)
    return true
  })
})

test('a package that ships TypeScript is loaded too, although Node does not strip types under node_modules', async (t) => {
  const { load } = await folder(t, {
    'role.yaml': 'role: test\nplugins:\n  typed:\n    use: acme-typed\n',
    'node_modules/acme-typed/package.json': '{"name":"acme-typed","type":"module","exports":"./main.ts"}',
    'node_modules/acme-typed/main.ts': `${pluginText}\nexport const answer: number = 42`,
  })
  const [entry] = (await load()).plugins
  assert.equal(entry?.plugin.name, 'p')
})

test('where all variables of `instead` are set a started process is made of that file, and a checked one is not', async (t) => {
  const { load } = await folder(t, {
    'role.yaml': 'role: first\ninstead:\n  whenSet: [A, B]\n  file: other.yaml\nplugins: {}\n',
    'other.yaml': 'role: other\ninstead:\n  whenSet: [A]\n  file: role.yaml\nplugins: {}\n',
  })
  const name = async (env: Environment, instead: boolean): Promise<string> => (await load(env, instead)).name
  assert.equal(await name({ A: 'a', B: 'b' }, true), 'other')
  assert.equal(await name({ A: 'a', B: 'b' }, false), 'first')
  assert.equal(await name({ A: 'a', B: '' }, true), 'first')
  assert.equal(await name({ A: 'a' }, true), 'first')
})

test('an `instead` that is not one is a problem of its file', async (t) => {
  const { problems } = await folder(t, { 'role.yaml': 'role: first\ninstead:\n  whenSet: []\nplugins: {}\n' })
  const said = await problems()
  assert.ok(
    said.some((problem) => problem.startsWith('instead.file is required')),
    said.join('\n'),
  )
})
