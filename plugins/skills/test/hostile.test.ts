import assert from 'node:assert/strict'
import { PassThrough } from 'node:stream'
import { test, type TestContext } from 'node:test'
import { freshDatabase } from '#testing'
import { LocalSkillStore } from '../local.ts'
import { readFolder, readWritten } from '../package.ts'
import { collisions, isLitter } from '../paths.ts'
import { stagingMs } from '../store.ts'
import { skillText, startSkills } from './server.ts'

// Attacks of a hostile tenant: on other tenants, on the conductor's memory and time, or on the database's disk.

const lines = (count: number, line: (i: number) => string): string =>
  Array.from({ length: count }, (_, i) => line(i)).join('')
const empty = { bytes: Buffer.alloc(0), executable: false }

test('a folder that is made to cost much is refused, and its answer is short', async () => {
  const fronts = [
    `bad: a: b\nfoo:${' '.repeat(30_000)}b`,
    lines(3_000, (i) => `k${i}: \n`),
    `name: x\ndescription: d\nmetadata:\n${lines(3_000, (i) => ` k${i}: \u0007\n`)}`,
    `!!binary |\n ${'A'.repeat(30_000)}`,
    `metadata: ${'['.repeat(30_000)}`,
    `a: &a [x]\n${lines(3_000, (i) => `b${i}: *a\n`)}`,
    `name: "${'\uFDFA'.repeat(10_000)}"\ndescription: d`,
    `name: x\ndescription: d\nname: y`,
    `name: x\ndescription: d\nmetadata: {a: b, a: c}`,
    'k: v\n'.repeat(100_000),
    `name: x\ndescription: d\nmetadata: ${'{? '.repeat(400)}${'}'.repeat(400)}`,
    `name: x\ndescription: d\n? ${'['.repeat(400)}${']'.repeat(400)}\n: x`,
  ]
  for (const front of fronts) {
    const { skill, ...said } = await readFolder([
      { ...empty, path: 'x/SKILL.md', bytes: Buffer.from(`---\n${front}\n---\n`) },
    ])
    assert.ok(skill === undefined && said.problems.length > 0, front.slice(0, 40))
    assert.ok(said.problems.length <= 101 && said.forgiven.length <= 101, front.slice(0, 40))
    assert.ok(JSON.stringify(said).length < 64 * 1024, front.slice(0, 40))
  }
  const deep = Array.from({ length: 1_000 }, (_, i) => ({ ...empty, path: `x/${'a/'.repeat(7_000)}${i}` }))
  const { problems, resources } = await readFolder(deep)
  assert.deepEqual([problems.length, problems.at(-1)!.slice(0, 9), resources], [101, 'There are', []])
})

test('a front matter of more parts than any has is not parsed: the parser makes an error, with its trace, of each comma', async () => {
  const problems = async (front: string): Promise<string> => {
    const text = `---\nname: x\ndescription: d\n${front}\n---\n`
    return (await readFolder([{ ...empty, path: 'x/SKILL.md', bytes: Buffer.from(text) }])).problems.join()
  }
  const tangled = [
    `a: [${','.repeat(30_000)}]`,
    `a: "${'\\z'.repeat(15_000)}"`,
    ': '.repeat(15_000),
    '!!str '.repeat(5_000),
  ]
  for (const front of tangled) assert.match(await problems(front), /is no YAML: it has too many parts\.$/)
  assert.match(await problems('a: "\\z"'), /Invalid escape sequence \\z at line 3, column 5\.$/)
  const metadata = lines(100, (i) => `\n  # ${i}\n  "key ${i}": "${'\\n a: b, '.repeat(10)}"`)
  const tools = lines(100, (i) => `\n  - 'tool${i}(a: *)'`)
  assert.equal(await problems(`metadata:${metadata}\nallowed-tools:${tools}`), '')
})

test('a key of a front matter is text: lists and mappings in keys are written again and again', async () => {
  const problems = async (metadata: string): Promise<string> => {
    const text = `---\nname: x\ndescription: d\nmetadata: ${metadata}\n---\n`
    return (await readFolder([{ ...empty, path: 'x/SKILL.md', bytes: Buffer.from(text) }])).problems.join()
  }
  for (const key of ['{? {a: b} : c}', '{[a]: c}', '{k: [{? [] : c}]}', '\n  ? - a\n  : c', '{&a x: b, *a : c}'])
    assert.match(await problems(key), /^The front matter of SKILL\.md is no YAML: it has a key that is no text/, key)
  for (const fine of ['{? a : c}', '{"a b": [c, {d: e}]}', '\n  ? a\n  : c'])
    assert.equal(await problems(fine), '', fine)
})

test('tools with the names of what every object has are names like others', async (t) => {
  const allowedTools = ['constructor', '__proto__', 'toString(x)', 'hasOwnProperty']
  const { skill } = readWritten({ name: 'x', description: 'd', allowedTools, metadata: {} }, 'b')
  assert.deepEqual(skill!.allowedTools, allowedTools)
  const { call, skills } = await startSkills(t)
  await call('POST', '/api/skills', { name: 'x', description: 'd', body: 'b', allowedTools })
  const { found } = await skills.attached('acme', { skills: ['x'], tools: [] })
  assert.deepEqual(found[0]!.allowedTools, ['constructor', '__proto__', 'toString', 'hasOwnProperty'])
})

for (const stored of [true, false]) {
  const where = stored ? 'in PostgreSQL' : 'without a database'
  const start = async (t: TestContext) => startSkills(t, { dsn: stored ? await freshDatabase(t) : undefined })

  test(`${where} a tenant's own using-* is its own alone, and brings an agent no tool`, async (t) => {
    const { call, upload, skills } = await start(t)
    const own = { name: 'using-shell', description: 'd', body: 'b', allowedTools: ['calculate'] }
    assert.equal((await call('POST', '/api/skills', own)).statusCode, 409)
    assert.equal((await call('POST', '/api/skills', { ...own, name: 'using-*' })).json().error, 'invalid_skill')
    assert.equal((await call('POST', '/api/skills', { ...own, name: 'using-anything' })).statusCode, 201)
    const front = 'allowed-tools: http_fetch\n'
    const { stagingId } = (await upload({ 'using-shell/SKILL.md': skillText('using-shell', front) })).json()
    await call('POST', `/api/skills/import/${stagingId}/commit`)
    const ofTools = async (tenant: string) => {
      const { found } = await skills.attached(tenant, { skills: ['using-*'], tools: ['shell', 'calculate'] })
      return found.map(({ name, allowedTools }) => [name, ...allowedTools])
    }
    // The tools are those of the platform's skill, but a profile must meet the requirements of the tenant's skill.
    assert.deepEqual(await ofTools('acme'), [
      ['using-calculate', 'calculate'],
      ['using-shell', 'http_fetch'],
    ])
    assert.deepEqual(await ofTools('globex'), [
      ['using-calculate', 'calculate'],
      ['using-shell', 'shell'],
    ])
    await call('DELETE', '/api/skills/using-shell')
    assert.equal((await call('GET', '/api/skills/using-shell')).json().source, 'platform')
  })

  test(`${where} a path is one of the skill's own, whatever is tried`, async (t) => {
    const { call, upload } = await start(t)
    const { stagingId } = (await upload({ 'pdf/SKILL.md': skillText('pdf'), 'pdf/a/b.txt': 'here' })).json()
    for (const tenant of ['globex', 'constructor', '__proto__'])
      assert.equal(
        (await call('POST', `/api/skills/import/${stagingId}/commit`, undefined, tenant)).statusCode,
        404,
        tenant,
      )
    await call('POST', `/api/skills/import/${stagingId}/commit`)
    const get = (query: string, name = 'pdf') => call('GET', `/api/skills/${name}/file?${query}`)
    assert.equal((await get('path=a/b.txt')).body, 'here')
    const tricks = [
      '/a/b.txt',
      './a/b.txt',
      'a//b.txt',
      'a/../a/b.txt',
      '../pdf/a/b.txt',
      '..%2Fpdf%2Fa%2Fb.txt',
      'a%5Cb.txt',
    ]
    const others = [
      'a',
      'a/',
      'A/B.TXT',
      'a/b.txt%00',
      'a/b.txt%20',
      '%2e%2e',
      'skill.md',
      '/etc/passwd',
      '%ff',
      '__proto__',
    ]
    for (const path of [...tricks, ...others]) {
      const { statusCode } = await get(`path=${path}`)
      assert.ok(statusCode === 404 || statusCode === 400, `${path}: ${statusCode}`)
    }
    for (const query of ['', 'path=', 'path=a/b.txt&path=SKILL.md', `path=${'a'.repeat(513)}`])
      assert.equal((await get(query)).statusCode, 400, query.slice(0, 40))
    for (const name of ['..%2Fpdf', 'constructor', '__proto__', 'using-*', 'PDF', 'p%00df'])
      assert.equal((await get('path=a/b.txt', name)).statusCode, 404, name)
  })
}

test('floods of imports and of versions leave a bounded rest, at once and without the sweep', async (t) => {
  const { call, upload, database } = await startSkills(t, { dsn: await freshDatabase(t) })
  const contents = async (): Promise<number> => {
    const text = `SELECT count(*)::int AS count FROM skill_contents WHERE manifest ->> 'name' = 'pdf'`
    const [[row]] = await database.batch<[{ count: number }[]]>('acme', [{ text }])
    return row!.count
  }
  const stage = async (n: number): Promise<string> =>
    (await upload({ 'pdf/SKILL.md': skillText('pdf', '', `body ${n}`) })).json().stagingId
  for (let n = 0; n < 40; n++) await stage(n)
  assert.equal(await contents(), 10 + 20, 'ten that can be committed, and twenty that the sweep takes')
  for (let n = 0; n < 30; n++) await call('POST', `/api/skills/import/${await stage(100 + n)}/commit`)
  assert.ok((await contents()) <= 10 + 20 + 1)
  for (let n = 0; n < 30; n++) {
    await call('DELETE', '/api/skills/pdf')
    await call('POST', '/api/skills', { name: 'pdf', description: 'd', body: String(n) })
  }
  assert.ok((await contents()) <= 10 + 20 + 1)
})

test('what a model is shown of a file holds nothing that people do not see; what goes into a sandbox is not read for it', async () => {
  const main = { ...empty, path: 'x/SKILL.md', bytes: Buffer.from(skillText('x')) }
  const problems = async (text: string | Buffer) =>
    (await readFolder([main, { ...empty, path: 'x/references/a.md', bytes: Buffer.from(text) }])).problems
  const coded = ['\u{E0131}\u{E0138}\u{E0135}', '\u200B\u200C\u200C', '\u2060\u2062\u2063']
  for (const character of ['\u{E0041}', '\u202E', '\u2066', ...coded])
    assert.match((await problems(`good${character}`)).join(), /^The file 'references\/a\.md' holds U\+\w+, a character/)
  const written = [
    'a\fb \u200D \u{1F469}\u200D\u{1F4BB} \u2764\uFE0F\u200D\u{1F525}',
    '\u845B\u{E0100}',
    '\u0645\u06CC\u200C\u062E',
  ]
  for (const fine of [...written, Buffer.from('\u202E\0'), '\u202E'.repeat(100_000)])
    assert.deepEqual(await problems(fine), [])
})

test('without a database an import can be committed for its time, and not a moment longer', async (t) => {
  t.mock.timers.enable({ apis: ['Date'] })
  const store = new LocalSkillStore(undefined)
  const { skill } = readWritten({ name: 'x', description: 'd', allowedTools: [], metadata: {} }, 'b')
  const ids = await Promise.all([1, 2].map(() => store.stage('acme', skill!)))
  t.mock.timers.tick(stagingMs - 1)
  assert.equal((await store.commit('acme', ids[0]!, { most: 10 }))?.name, 'x')
  t.mock.timers.tick(1)
  assert.equal(await store.commit('acme', ids[1]!, { most: 10 }), undefined)
})

test('without a database the versions of one tenant do not drive those of another out', async () => {
  const store = new LocalSkillStore(undefined)
  const skill = (body: string) =>
    readWritten({ name: 'pdf', description: 'd', allowedTools: [], metadata: {} }, body).skill!
  const how = { source: 'imported', replace: true, most: 10 } as const
  await store.put('globex', skill('old'), how)
  await store.put('globex', skill('new'), how)
  for (let n = 0; n < 300; n++) await store.put('acme', skill(String(n)), how)
  assert.ok(await store.content('globex', skill('old').digest))
  assert.equal(await store.content('acme', skill('0').digest), undefined)
  assert.ok(await store.content('acme', skill('298').digest))
})

test('of the uploads that a tenant begins at once two are read; others are told to come again', async (t) => {
  const { app, upload } = await startSkills(t)
  const headers = { tenant: 'acme', 'content-type': 'multipart/form-data; boundary=b' }
  const bodies = [new PassThrough(), new PassThrough()]
  const slow = bodies.map((payload) => app.inject({ method: 'POST', url: '/api/skills/import', headers, payload }))
  const pdf = { 'pdf/SKILL.md': skillText('pdf') }
  // Waits until both uploads have reached the handler.
  let refused = await upload(pdf)
  while (refused.statusCode === 200) refused = await upload(pdf)
  assert.deepEqual([refused.statusCode, refused.json().error], [429, 'too_many_imports'])
  assert.equal((await upload(pdf, 'globex')).json().valid, true)
  for (const body of bodies) body.end('--b\r\nhalf')
  for (const answer of await Promise.all(slow)) assert.equal(answer.json().error, 'broken_upload')
  assert.equal((await upload(pdf)).json().valid, true)
})

test('names of files are refused while they arrive, when they are much longer than any path', async (t) => {
  const { app, upload } = await startSkills(t)
  // A thousand names of 80 KB were kept, and searched in quadratic time.
  for (const name of [`${'/.git'.repeat(16_000)}\u2028x`, `x/${'a'.repeat(1_023)}`]) {
    const refused = await upload({ [name]: '' })
    assert.deepEqual([refused.statusCode, refused.json().error], [400, 'broken_upload'], name.slice(0, 40))
    assert.match(refused.json().message, /is longer than 1024 bytes/)
  }
  const reported = await upload({ [`x/${'a'.repeat(1_022)}`]: '' })
  assert.match(reported.json().problems.join(), /is longer than 512 bytes.*There is no SKILL\.md/)
  const headers = { 'content-type': 'multipart/form-data; boundary=b' }
  const part = 'Content-Disposition: form-data; name="files"\r\nContent-Type: application/octet-stream\r\n\r\nx'
  const payload = `--b\r\n${part}\r\n--b--\r\n`
  const nameless = await app.inject({ method: 'POST', url: '/api/skills/import', headers, payload })
  assert.match(nameless.json().problems.join(), /The path '' is empty/)
})

test('what systems leave behind is a whole part of a path', () => {
  const litter = [
    '.git',
    'x/.git',
    'x/.git/config',
    '.git/x',
    'x/__MACOSX/a/b',
    '__pycache__',
    '.DS_Store',
    'x/Thumbs.db',
  ]
  assert.deepEqual(litter.filter(isLitter), litter)
  const others = [
    '.gitignore',
    'x/a.git',
    'x/.github/a',
    '.DS_Store/a',
    'x/desktop.ini.md',
    'git',
    'x/not__pycache__/a',
  ]
  assert.deepEqual(others.filter(isLitter), [])
})

test('paths whose letters are long in their plain form are compared in turns', async () => {
  const paths = Array.from({ length: 640 }, (_, i) => `x/${i}/${`${'\uFDFA'.repeat(40)}/`.repeat(3)}a`)
  let turns = 0
  let next = setImmediate(function again() {
    turns++
    next = setImmediate(again)
  })
  assert.deepEqual(await collisions(paths), [])
  clearImmediate(next)
  assert.ok(turns >= 9, String(turns))
  const alike = ['x/\uFF21/b', 'x/a/B', 'x/a', 'x/\u03A3/c']
  assert.deepEqual(await collisions(alike), [
    "The paths 'x/\uFF21/b' and 'x/a/B' differ only in the case or form of their letters.",
    "The path 'x/a' is a file, and 'x/a/B' is inside it.",
  ])
})

test('metadata that no skill can have is refused before it is written out, and a little too much is reported', async (t) => {
  const { call } = await startSkills(t)
  const answer = async (metadata: object): Promise<string> =>
    (await call('POST', '/api/skills', { name: 'x', description: 'd', body: 'b', metadata })).json().error
  const keys = (count: number): object => Object.fromEntries(Array.from({ length: count }, (_, i) => [`k${i}`, '']))
  for (const metadata of [keys(201), { ['k'.repeat(1_001)]: '' }, { k: 'v'.repeat(40_001) }, { 'k\n': { k: ['v'] } }])
    assert.equal(await answer(metadata), 'invalid_request')
  for (const metadata of [keys(101), { k: 'v'.repeat(33_000) }]) assert.equal(await answer(metadata), 'invalid_skill')
  assert.equal(await answer({ ['k'.repeat(1_000)]: 'v'.repeat(30_000) }), undefined)
})
