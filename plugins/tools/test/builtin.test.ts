import assert from 'node:assert/strict'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { PlatformTools } from '#contracts/tools'
import { fake, testToolContext, testToolProvider } from '#testing'
import { createBuiltinTools } from '../index.ts'
import { timeIn } from '../builtin/current-time.ts'

const builtinOf = (t: TestContext, docs?: string) => {
  const { tools, close } = createBuiltinTools({ docs, httpFetchTimeout: 10_000, httpFetchHosts: [] })
  t.after(close)
  return tools
}

testToolProvider('built-in tools', (t) => [fake(PlatformTools, builtinOf(t))], {
  calls: [
    { tool: 'calculate', input: { expression: '17 * 3' }, matches: /51/ },
    { tool: 'calculate', input: { expression: '17 *' }, ok: false },
    { tool: 'current_time', input: { timeZone: 'Europe/Berlin' }, matches: /\d{4}-\d\d-\d\d/ },
    { tool: 'search_docs', input: { query: 'draining a runner' }, matches: /drain/i },
    {
      tool: 'search_docs',
      input: { query: 'Which page covers draining?' },
      matches: /^\[{"title":"Stopping and draining"/,
    },
    { tool: 'http_fetch', input: { url: 'http://127.0.0.1:1/' }, ok: false },
  ],
})

test('current_time answers in UTC and in a named zone, summer time included', () => {
  assert.deepEqual(timeIn('UTC', new Date('2026-01-02T03:04:05.678Z')), {
    utc: '2026-01-02T03:04:05.678Z',
    timeZone: 'UTC',
    local: '2026-01-02T03:04:05+00:00',
    weekday: 'Friday',
  })
  assert.equal(timeIn('Europe/Berlin', new Date('2026-01-01T23:30:00Z'))['local'], '2026-01-02T00:30:00+01:00')
  assert.equal(timeIn('Europe/Berlin', new Date('2026-07-01T12:00:00Z'))['local'], '2026-07-01T14:00:00+02:00')
  assert.equal(timeIn('Asia/Kathmandu', new Date('2026-07-01T12:00:00Z'))['local'], '2026-07-01T17:45:00+05:45')
  assert.equal(timeIn('America/St_Johns', new Date('2026-01-01T12:00:00Z'))['local'], '2026-01-01T08:30:00-03:30')
})

test('current_time refuses a zone that does not exist', async (t) => {
  const tool = builtinOf(t)['current_time']!
  await assert.rejects(tool.execute({ timeZone: 'Mars/Olympus' }, testToolContext()), { code: 'unknown_time_zone' })
  assert.equal((await tool.execute({}, testToolContext())).ok, true)
})

type Hit = { title: string; file: string; excerpt: string }

async function docs(t: TestContext): Promise<string> {
  const root = await mkdtemp(join(tmpdir(), 'docs-'))
  t.after(() => rm(root, { recursive: true }))
  await mkdir(join(root, 'docs', 'adr'), { recursive: true })
  await writeFile(join(root, 'README.md'), '# Welcome\nAn orchestration server.\n\n## Install\nRun `npm ci`.\n')
  await writeFile(
    join(root, 'docs', 'guide.md'),
    '# Profiles\nA profile defines an agent.\n\n```sh\n# not a heading\n```\n\n## Publishing ##\nPublish profiles; then mint keys.\n',
  )
  await writeFile(
    join(root, 'docs', 'adr', '1.md'),
    `# Claims\n${'filler words here. '.repeat(200)}lease epoch ${'and more. '.repeat(200)}`,
  )
  await writeFile(join(root, 'docs', 'data.json'), '{"profile": true}')
  return root
}

test('search_docs ranks sections by heading and text', async (t) => {
  const tool = builtinOf(t, await docs(t))['search_docs']!
  const search = async (query: string, limit = 5) =>
    JSON.parse((await tool.execute({ query, limit }, testToolContext())).content) as Hit[]
  const hits = await search('profile')
  assert.deepEqual(
    hits.map((hit) => [hit.title, hit.file]),
    [
      ['Profiles', 'docs/guide.md'],
      ['Publishing', 'docs/guide.md'],
    ],
  )
  assert.match(hits[0]!.excerpt, /A profile defines an agent\./)
  assert.deepEqual(
    (await search('INSTALL')).map((hit) => hit.title),
    ['Install'],
  )
  assert.equal((await search('profile', 1)).length, 1)
  const [claims] = await search('epoch lease')
  assert.equal(claims!.file, 'docs/adr/1.md')
  assert.match(claims!.excerpt, /lease epoch/)
  assert.ok(claims!.excerpt.length < 700)
  assert.equal((await tool.execute({ query: 'zebra' }, testToolContext())).content, 'Nothing was found.')
})

test('search_docs answers from the documentation of this repository', async (t) => {
  const tool = builtinOf(t)['search_docs']!
  const hits = JSON.parse((await tool.execute({ query: 'agent', limit: 20 }, testToolContext())).content) as Hit[]
  assert.ok(hits.some((hit) => hit.file === 'README.md'))
})

test('search_docs without documentation finds nothing', async (t) => {
  const tool = builtinOf(t, join(tmpdir(), 'there-is-no-such-folder'))['search_docs']!
  assert.deepEqual(await tool.execute({ query: 'x' }, testToolContext()), { ok: true, content: 'Nothing was found.' })
})
