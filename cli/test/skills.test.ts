import assert from 'node:assert/strict'
import { chmod, mkdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { dirname, join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { startCluster } from '../../test/e2e/cluster.ts'
import { emptyFolder, run } from './spawned.ts'

async function folder(t: TestContext, files: Record<string, string>): Promise<string> {
  const dir = await emptyFolder(t)
  for (const [path, text] of Object.entries(files)) {
    await mkdir(dirname(join(dir, path)), { recursive: true })
    await writeFile(join(dir, path), text)
  }
  return dir
}
const main = '---\nname: pdf\ndescription: Reads PDF files.\n---\n# PDF\n'

test('validate says everything that is wrong, folder by folder, and fails when one is no skill', async (t) => {
  const dir = await folder(t, {
    'pdf/SKILL.md': main,
    'bad/SKILL.md': '---\nlicense: MIT\n---\n',
    'docs/README.md': '',
  })
  const { code, stdout, stderr } = await run(t, ['skills', 'validate', dir])
  assert.equal(code, 1)
  assert.match(stderr, /1 of the folders is not a skill/)
  const [bad, pdf] = stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
  assert.deepEqual([bad.name, bad.valid, bad.problems.length], ['bad', false, 1])
  assert.deepEqual(pdf, { name: 'pdf', valid: true, problems: [], forgiven: [] })
  assert.equal((await run(t, ['skills', 'validate', join(dir, 'pdf')])).code, 0)
  assert.equal((await run(t, ['skills', 'validate', join(dir, 'docs')])).code, 2)
  assert.equal((await run(t, ['skills', 'pull', dir, '--data', await emptyFolder(t)])).code, 2)
})

test('what is imported is pulled as it was, executable bits and bytes', async (t) => {
  const cluster = await startCluster(t, 'single')
  const of = ['--url', cluster.conductorUrl, '--key', cluster.bootstrap]
  const dir = await folder(t, { 'pdf/SKILL.md': main, 'pdf/scripts/run.sh': '#!/bin/sh\n', 'pdf/tool': '\u0000\u0001' })
  await chmod(join(dir, 'pdf/tool'), 0o755)
  const imported = await run(t, ['skills', 'import', dir, ...of])
  assert.equal(imported.code, 0, imported.stderr)
  assert.match(imported.stderr, /imported pdf, version 1/)
  const target = await emptyFolder(t)
  const pulled = await run(t, ['skills', 'pull', target, ...of])
  assert.deepEqual([pulled.code, JSON.parse(pulled.stdout)], [0, { skills: ['pdf'], left: [] }], pulled.stderr)
  for (const path of ['SKILL.md', 'scripts/run.sh', 'tool'])
    assert.deepEqual(await readFile(join(target, 'pdf', path)), await readFile(join(dir, 'pdf', path)), path)
  assert.equal((await stat(join(target, 'pdf/tool'))).mode & 0o111, 0o111)
  await chmod(join(target, 'pdf/tool'), 0o644)
  const outside = join(await folder(t, { 'mine.md': 'mine' }), 'mine.md')
  await rm(join(target, 'pdf/SKILL.md'))
  await symlink(outside, join(target, 'pdf/SKILL.md'))
  await writeFile(join(target, 'pdf/old.md'), 'of a version before')
  const again = await run(t, ['skills', 'pull', target, ...of])
  assert.deepEqual(JSON.parse(again.stdout), { skills: ['pdf'], left: ['pdf/old.md'] }, again.stderr)
  assert.equal((await stat(join(target, 'pdf/tool'))).mode & 0o111, 0o111)
  assert.deepEqual(
    [await readFile(outside, 'utf8'), await readFile(join(target, 'pdf/SKILL.md'), 'utf8')],
    ['mine', main],
  )
  const refused = await run(t, ['skills', 'import', await folder(t, { 'x/SKILL.md': '# none' }), ...of])
  assert.deepEqual([refused.code, /no front matter/.test(refused.stdout)], [1, true])
  const wrong = await run(t, ['skills', 'import', dir, '--url', cluster.conductorUrl, '--key', 'no-key'])
  assert.deepEqual([wrong.code, /answers 401/.test(wrong.stderr)], [1, true])
})

test('a pull that a new version came in between of fails, and so does one whose server names files elsewhere', async (t) => {
  const skill = { name: 'pdf', source: 'user', digest: 'old', resources: [] as object[] }
  const server = createServer((request, reply) => {
    const list = request.url === '/api/skills'
    if (request.url!.includes('/file')) return void reply.end(main)
    reply.setHeader('content-type', 'application/json')
    reply.end(JSON.stringify(list ? [skill] : { ...skill, digest: 'new' }))
  })
  await new Promise<void>((listening) => server.listen(0, '127.0.0.1', listening))
  t.after(() => server.close())
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const pull = async () => {
    const { code, stderr } = await run(t, ['skills', 'pull', await emptyFolder(t), '--url', url, '--key', 'k'])
    assert.equal(code, 1)
    return stderr
  }
  assert.match(await pull(), /'pdf' changed while it was pulled/)
  skill.resources = [{ path: '../../evil', executable: false }]
  assert.match(await pull(), /a file of 'pdf' that must not be written/)
})
