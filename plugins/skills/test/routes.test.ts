import assert from 'node:assert/strict'
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { sha256 } from '#contracts/skills'
import { freshDatabase } from '#testing'
import { skillText, startSkills } from './server.ts'

interface Listed {
  readonly name: string
  readonly source: string
}
const note = { name: 'notes', description: 'How to take notes.', body: '# Notes\n' }

/** Runs a test with both stores, because clients must see no difference. */
function onBoth(sentence: string, body: (t: TestContext, dsn: string | undefined) => Promise<void>): void {
  test(`in PostgreSQL ${sentence}`, async (t) => body(t, await freshDatabase(t)))
  test(`without a database ${sentence}`, (t) => body(t, undefined))
}

onBoth('a skill is created, shown, listed in pages and deleted, for its tenant alone', async (t, dsn) => {
  const { call } = await startSkills(t, { dsn })
  const full = {
    ...note,
    license: 'MIT',
    compatibility: 'any',
    allowedTools: ['Bash(git add:*)'],
    metadata: { a: 'b' },
  }
  const created = await call('POST', '/api/skills', full)
  assert.equal(created.statusCode, 201, created.body)
  const skill = created.json<Record<string, unknown>>()
  const { createdAt: _, updatedAt: __, digest, totalBytes, ...shown } = skill
  assert.deepEqual(shown, { ...full, source: 'user', version: 1, resources: [], requiresSandbox: false })
  assert.match(String(digest), /^[0-9a-f]{64}$/)
  assert.deepEqual((await call('GET', '/api/skills/notes')).json(), skill)
  const main = await call('GET', '/api/skills/notes/file?path=SKILL.md')
  assert.equal(main.rawPayload.length, totalBytes)
  assert.equal(main.headers['content-disposition'], 'attachment')
  const list = await call('GET', '/api/skills')
  const all = list.json<Listed[]>()
  assert.deepEqual(
    all.map(({ name }) => name),
    [
      'notes',
      'using-calculate',
      'using-current-time',
      'using-delegate',
      'using-files',
      'using-http-fetch',
      'using-memory',
      'using-search-docs',
      'using-shell',
    ],
  )
  assert.deepEqual([...new Set(all.map(({ source }) => source))], ['user', 'platform'])
  assert.ok(!('body' in all[0]!))
  const page = await call('GET', '/api/skills?limit=2&offset=1')
  assert.deepEqual([page.headers['x-total-count'], page.json()], ['9', all.slice(1, 3)])

  assert.equal((await call('POST', '/api/skills', note)).json().error, 'conflict')
  for (const url of ['/api/skills/notes', '/api/skills/notes/file?path=SKILL.md', '/api/skills/Not%20a%20name']) {
    assert.equal((await call('GET', url, undefined, 'globex')).statusCode, 404, url)
  }
  assert.equal((await call('DELETE', '/api/skills/notes', undefined, 'globex')).statusCode, 404)
  assert.equal((await call('GET', '/api/skills/notes/file?path=../SKILL.md')).statusCode, 404)
  assert.equal((await call('DELETE', '/api/skills/notes')).statusCode, 204)
  assert.equal((await call('GET', '/api/skills/notes')).statusCode, 404)
  assert.equal((await call('DELETE', '/api/skills/notes')).statusCode, 404)
})

onBoth('a bad skill is refused with every problem, and too many or too large ones by their limit', async (t, dsn) => {
  const { call, upload } = await startSkills(t, { dsn, limits: { skills: 1, skillBytes: 10_000 } })
  const bad = await call('POST', '/api/skills', {
    name: 'No Name',
    description: '',
    body: 'a\u0000',
    compatibility: 'c'.repeat(501),
  })
  assert.deepEqual([bad.statusCode, bad.json().error, bad.json().problems.length], [400, 'invalid_skill', 4], bad.body)
  assert.equal((await call('POST', '/api/skills', { name: 'a' })).json().error, 'invalid_request')
  assert.equal((await call('POST', '/api/skills', { ...note, surprise: 1 })).json().error, 'invalid_request')
  const large = await call('POST', '/api/skills', { ...note, body: 'x'.repeat(10_001) })
  assert.deepEqual([large.statusCode, large.json().limit], [409, 'skillBytes'])
  const file = await upload({ 'notes/SKILL.md': skillText('notes'), 'notes/data': 'x'.repeat(10_001) })
  assert.deepEqual([file.statusCode, file.json().limit], [409, 'skillBytes'])
  assert.equal((await call('POST', '/api/skills', note)).statusCode, 201)
  const second = await call('POST', '/api/skills', { ...note, name: 'more' })
  assert.deepEqual([second.statusCode, second.json().limit], [409, 'skills'])
  const { stagingId } = (await upload({ 'more/SKILL.md': skillText('more') })).json()
  const committed = await call('POST', `/api/skills/import/${stagingId}/commit`)
  assert.deepEqual([committed.statusCode, committed.json().limit], [409, 'skills'])
  await call('DELETE', '/api/skills/notes')
  assert.equal(
    (await call('POST', `/api/skills/import/${stagingId}/commit`)).statusCode,
    201,
    'a refusal leaves the import',
  )
})

onBoth('a SKILL.md that may be executed, as in folders from elsewhere, is no script', async (t, dsn) => {
  const { call, upload } = await startSkills(t, { dsn })
  const tried = (await upload({ 'x/SKILL.md': skillText('x') }, 'acme', ['x/SKILL.md'])).json()
  const made = (await call('POST', `/api/skills/import/${tried.stagingId}/commit`)).json()
  assert.deepEqual([tried.requiresSandbox, made.requiresSandbox], [false, false])
})

onBoth('a folder is tried first, and then committed once by its tenant', async (t, dsn) => {
  const { call, upload } = await startSkills(t, { dsn })
  const script = '#!/bin/sh\necho hi\n'
  const binary = new Uint8Array([0x50, 0x4b, 0, 1, 0xff])
  const files = { 'pdf/SKILL.md': skillText('pdf'), 'pdf/scripts/a.sh': script, 'pdf/run': 'x', 'pdf/data.bin': binary }
  const tried = await upload(files, 'acme', ['pdf/run'])
  assert.equal(tried.statusCode, 200, tried.body)
  const { stagingId, ...said } = tried.json()
  const resource = (path: string, contentType: string, data: string | Uint8Array, executable: boolean) => ({
    path,
    contentType,
    sha256: sha256(data),
    executable,
    bytes: data.length,
  })
  assert.deepEqual(said, {
    valid: true,
    name: 'pdf',
    problems: [],
    forgiven: [],
    resources: [
      resource('data.bin', 'application/octet-stream', binary, false),
      resource('run', 'text/plain', 'x', true),
      resource('scripts/a.sh', 'text/x-shellscript', script, true),
    ],
    requiresSandbox: true,
    totalBytes: skillText('pdf').length + script.length + 1 + binary.length,
  })
  assert.equal((await call('GET', '/api/skills/pdf')).statusCode, 404, 'nothing is written before the commit')
  const commit = `/api/skills/import/${stagingId}/commit`
  assert.equal((await call('POST', commit, undefined, 'globex')).statusCode, 404)
  const made = await call('POST', commit)
  assert.deepEqual([made.statusCode, made.json().source, made.json().version], [201, 'imported', 1], made.body)
  assert.equal((await call('POST', commit)).statusCode, 404)
  for (const id of ['nobody', '..%2f', 'stg_' + '0'.repeat(33)])
    assert.equal((await call('POST', `/api/skills/import/${id}/commit`)).statusCode, 404, id)
  const bytes = await call('GET', '/api/skills/pdf/file?path=data.bin')
  assert.deepEqual([...bytes.rawPayload], [...binary])
  assert.equal((await call('GET', '/api/skills/pdf/file?path=scripts/a.sh')).body, script)

  const again = (await upload({ 'pdf/SKILL.md': skillText('pdf', 'license: MIT\n') })).json()
  const replaced = (await call('POST', `/api/skills/import/${again.stagingId}/commit`)).json()
  assert.deepEqual([replaced.version, replaced.license, replaced.resources], [2, 'MIT', []])
})

onBoth(
  'a folder that is no skill is answered with everything that is wrong, and cannot be committed',
  async (t, dsn) => {
    const { app, upload } = await startSkills(t, { dsn })
    const { valid, name, problems, stagingId } = (
      await upload({ 'pdf/SKILL.md': '---\nname: -pdf\n---\n', 'pdf/../evil': 'x', 'pdf/AUX': 'x', '/etc/passwd': 'x' })
    ).json()
    assert.deepEqual([valid, name, stagingId], [false, 'pdf', undefined])
    assert.ok(problems.length >= 6, problems.join('\n'))
    const forgiven = (await upload({ 'PDF/skill.md': '---\nname: PDF\ndescription: d\nversion: 1\n---\n' })).json()
    assert.deepEqual([forgiven.valid, forgiven.name, forgiven.forgiven.length], [true, 'pdf', 3])
    const post = (type: string, payload: string | Buffer) =>
      app.inject({ method: 'POST', url: '/api/skills/import', headers: { 'content-type': type }, payload })
    assert.equal((await upload({})).json().valid, false)
    assert.equal((await post('application/json', '{}')).statusCode, 415)
    assert.equal((await post('text/plain', 'x')).statusCode, 415)
    const form = 'multipart/form-data; boundary=b'
    assert.equal((await post('multipart/form-data', 'x')).json().error, 'broken_upload')
    assert.equal(
      (await post(form, '--b\r\nContent-Disposition: form-data; name="files"; filename="a/b"\r\n\r\nhalf')).json()
        .error,
      'broken_upload',
    )
    assert.equal(
      (await post(form, '--b\r\nContent-Disposition: form-data; name="x"; filename="a/b"\r\n\r\n\r\n--b--')).json()
        .error,
      'broken_upload',
    )
    const part = '--b\r\nContent-Disposition: form-data; name="files"; filename="a/b"\r\n\r\n\r\n'
    const bomb = await post(form, `${part.repeat(1_001)}--b--`)
    assert.deepEqual([bomb.statusCode, bomb.json().error], [413, 'body_too_large'], bomb.body)
    const link = `--b\r\nContent-Disposition: form-data; name="files"; filename="a/l"\r\nContent-Type: inode/symlink\r\n\r\n/etc/passwd\r\n--b--`
    assert.match((await post(form, link)).json().problems.join(' '), /a link or a device/)
  },
)

onBoth(
  'a platform skill that a tenant deleted stays away from it, and one of its own takes its place',
  async (t, dsn) => {
    const dir = await mkdtemp(join(tmpdir(), 'ao-skills-'))
    t.after(() => rm(dir, { recursive: true }))
    await mkdir(join(dir, 'house-style'))
    await writeFile(join(dir, 'house-style/SKILL.md'), skillText('house-style'))
    const first = await startSkills(t, { dsn, dir })
    assert.equal((await first.call('GET', '/api/skills/house-style')).json().source, 'platform')
    assert.equal((await first.call('POST', '/api/skills', { ...note, name: 'house-style' })).statusCode, 409)
    assert.equal((await first.call('DELETE', '/api/skills/house-style')).statusCode, 204)
    // Another process, with a newer release of the skill.
    await writeFile(join(dir, 'house-style/SKILL.md'), skillText('house-style', 'license: MIT\n'))
    const later = await startSkills(t, { dsn, dir })
    assert.equal((await later.call('GET', '/api/skills/house-style')).statusCode, 404)
    assert.equal((await later.call('GET', '/api/skills/house-style', undefined, 'globex')).json().license, 'MIT')
    if (dsn === undefined)
      assert.deepEqual(JSON.parse(await readFile(join(dir, '.tombstones.json'), 'utf8')), { acme: ['house-style'] })
    assert.equal((await later.call('POST', '/api/skills', { ...note, name: 'house-style' })).statusCode, 201)
    assert.equal((await later.call('GET', '/api/skills/house-style')).json().source, 'user')
  },
)

onBoth('a version is there for its sessions when the skill was replaced or deleted', async (t, dsn) => {
  const { skills, call, upload } = await startSkills(t, { dsn })
  const put = async (text: string): Promise<string> => {
    const { stagingId } = (await upload({ 'pdf/SKILL.md': text, 'pdf/b': 'b', 'pdf/a': 'a' })).json()
    return (await call('POST', `/api/skills/import/${stagingId}/commit`)).json().digest
  }
  const old = await put(skillText('pdf'))
  const profile = { skills: ['pdf', 'using-*', 'none'], tools: ['calculate', 'read_file'] }
  const { found, missing } = await skills.attached('acme', profile)
  assert.deepEqual(missing, ['none'])
  assert.deepEqual(
    found.map(({ name, allowedTools }) => [name, allowedTools]),
    [
      ['pdf', []],
      ['using-calculate', ['calculate']],
    ],
  )
  assert.equal(found[0]!.digest, old)
  const newer = await put(skillText('pdf', 'license: MIT\n'))
  assert.notEqual(newer, old)
  await call('DELETE', '/api/skills/pdf')
  for (const digest of [old, newer]) {
    const content = await skills.content('acme', digest)
    assert.deepEqual(
      content!.files.map(({ path }) => path),
      ['SKILL.md', 'a', 'b'],
    )
    assert.deepEqual([content!.name, Buffer.from(content!.files[2]!.bytes).toString()], ['pdf', 'b'])
    assert.equal(await skills.content('globex', digest), undefined)
  }
  assert.deepEqual((await skills.attached('acme', { skills: ['pdf'], tools: [] })).missing, ['pdf'])
})

test('without a database tombstones are of each tenant, whatever its name, and a broken file brings nothing back', async (t) => {
  const dir = await mkdtemp(join(tmpdir(), 'ao-skills-'))
  t.after(() => rm(dir, { recursive: true }))
  const { call } = await startSkills(t, { dir })
  for (const tenant of ['constructor', 'acme']) {
    assert.equal((await call('DELETE', '/api/skills/using-shell', undefined, tenant)).statusCode, 204)
    assert.equal((await call('GET', '/api/skills/using-shell', undefined, tenant)).statusCode, 404)
  }
  assert.equal((await call('GET', '/api/skills/using-shell', undefined, 'globex')).statusCode, 200)
  await writeFile(join(dir, '.tombstones.json'), '{"acme": [')
  const later = await startSkills(t, { dir })
  assert.equal((await later.call('GET', '/api/skills/using-shell')).statusCode, 500)
  await writeFile(join(dir, '.tombstones.json'), '{"acme": ["using-shell"]}')
  assert.equal((await later.call('GET', '/api/skills/using-shell')).statusCode, 404)
})
