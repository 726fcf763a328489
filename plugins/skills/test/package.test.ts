import assert from 'node:assert/strict'
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { digestOf } from '#contracts/skills'
import { type GivenFile, mostFiles, readFolder, readWritten } from '../package.ts'
import { readSeeds } from '../seeds.ts'

const main = '---\nname: pdf\ndescription: Reads PDF files.\n---\n# PDF\n'
const file = (path: string, text: string | Buffer = 'text', more: Partial<GivenFile> = {}): GivenFile => ({
  path,
  bytes: Buffer.from(text),
  executable: false,
  ...more,
})

test('a folder becomes a skill with its resources, and needs a sandbox for its scripts', async () => {
  const png = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0])
  const { skill, resources, requiresSandbox, totalBytes, problems, forgiven } = await readFolder([
    file('pdf/scripts/run.py', '#!/usr/bin/env python3', { executable: true }),
    file('pdf/SKILL.md', main),
    file('pdf/assets/logo.png', png),
    file('pdf/notes', 'plain'),
    file('pdf/.DS_Store'),
  ])
  assert.deepEqual(problems, [])
  assert.match(forgiven.join(), /\.DS_Store/)
  assert.deepEqual(
    resources.map(({ path, contentType, executable, bytes }) => [path, contentType, executable, bytes]),
    [
      ['assets/logo.png', 'image/png', false, 5],
      ['notes', 'text/plain', false, 5],
      ['scripts/run.py', 'text/x-python', true, 22],
    ],
  )
  assert.ok(requiresSandbox)
  assert.equal(totalBytes, skill!.totalBytes)
  assert.equal(skill!.body, '# PDF\n')
  assert.equal(skill!.digest, digestOf(skill!.files))
})

test('the digest is that of the paths, contents and executable bits, whatever their order', () => {
  const files = [file('a', '1'), file('b', '2')]
  assert.equal(digestOf(files), digestOf(files.toReversed()))
  const others = [
    [file('a', '1'), file('b', '3')],
    [file('a', '1'), file('c', '2')],
    [file('a', '1', { executable: true }), file('b', '2')],
  ]
  for (const other of others) assert.notEqual(digestOf(files), digestOf(other))
})

test('a SKILL.md that was forgiven is kept in the strict form, with the same meaning', async () => {
  const { skill, forgiven } = await readFolder([
    file('PDF_Tools/SKILL.md', '---\nname: PDF Tools\ndescription: "a: b"\nextra: x\n---\n# Body'),
  ])
  assert.equal(forgiven.length, 2)
  const text = Buffer.from(skill!.files[0]!.bytes).toString()
  const again = await readFolder([file('pdf-tools/SKILL.md', text)])
  assert.deepEqual([again.problems, again.forgiven], [[], []])
  assert.deepEqual(again.skill, skill)
})

test('names that escape, hide, collide or cannot be stored are refused, each in a sentence of its own', async () => {
  const bad: [string, RegExp][] = [
    ['pdf/../../etc/passwd', /leaves its folder/],
    ['/etc/passwd', /absolute/],
    ['C:/windows', /absolute/],
    ['pdf/a\\..\\b', /backslash/],
    ['pdf/a\0.txt', /control character/],
    ['pdf/a\u202Etxt.exe', /do not see/],
    ['pdf//a', /empty part/],
    ['pdf/./a', /leaves its folder/],
    ['pdf/aux.txt', /reserved/],
    ['pdf/NUL', /reserved/],
    ['pdf/a.', /ends with a dot/],
    ['pdf/a*b', /not every system/],
    [`pdf/${'d/'.repeat(11)}a`, /folders deep/],
    [`pdf/${'x'.repeat(129)}`, /part longer/],
    [`pdf/${'x/'.repeat(5)}${'y/'.repeat(200)}`, /deep|longer/],
  ]
  const { problems, skill } = await readFolder([file('pdf/SKILL.md', main), ...bad.map(([path]) => file(path))])
  assert.equal(skill, undefined)
  for (const [path, said] of bad)
    assert.ok(
      problems.some((problem) => said.test(problem)),
      `${JSON.stringify(path)}: ${String(said)}`,
    )
  const collide = await readFolder([
    file('pdf/SKILL.md', main),
    file('pdf/A.md'),
    file('pdf/a.md'),
    file('pdf/twice'),
    file('pdf/twice'),
    file('pdf/dir'),
    file('pdf/dir/inside'),
    file('pdf/link', '', { special: true }),
  ])
  assert.equal(collide.problems.length, 4, collide.problems.join('\n'))
})

test('a folder is one, has its SKILL.md at its top, and is no bomb', async () => {
  const problemsOf = async (...files: GivenFile[]): Promise<string> => (await readFolder(files)).problems.join(' ')
  assert.match(await problemsOf(), /no files/)
  assert.match(await problemsOf(file('SKILL.md', main)), /with the folder of the skill in front/)
  assert.match(await problemsOf(file('a/SKILL.md', main), file('b/SKILL.md', main)), /several folders \('a', 'b'\)/)
  assert.match(await problemsOf(file('pdf/docs/SKILL.md', main)), /no SKILL\.md/)
  assert.match(await problemsOf(file('pdf/SKILL.md', Buffer.alloc(129 * 1024, 'a'))), /128 KiB/)
  assert.match(await problemsOf(file('pdf/SKILL.md', Buffer.from([0xff, 0xfe, 0x41]))), /no UTF-8/)
  const many = Array.from({ length: mostFiles }, (_, i) => file(`pdf/${i}`))
  assert.match(await problemsOf(file('pdf/SKILL.md', main), ...many), /501 files; a skill has at most 500/)
})

test('what is written field by field is held to the strict form', () => {
  const fields = { name: 'notes', description: 'd', allowedTools: [], metadata: {} }
  assert.equal(readWritten(fields, '# Body').skill?.body, '# Body')
  const { skill, problems } = readWritten({ ...fields, name: 'My Notes', description: 'x'.repeat(1_025) }, 'a\0')
  assert.equal(skill, undefined)
  assert.equal(problems.length, 3, problems.join('\n'))
  const told = (header: object): string => readWritten({ ...fields, ...header }, '').problems.join()
  assert.equal(told({ allowedTools: ['Bash(git add:*)', 'read_file'] }), '')
  assert.match(told({ name: 'My Notes' }), /^Does not follow the format: The name 'My Notes' was read as 'my-notes'/)
  assert.match(told({ allowedTools: ['a b'] }), /'a b' in 'allowedTools' is not the name of one tool/)
  assert.match(told({ allowedTools: ['a,b'] }), /Does not follow the format: .* commas/)
})

async function folder(t: TestContext, files: Record<string, string>): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'ao-skills-'))
  t.after(() => rm(dir, { recursive: true }))
  for (const [path, text] of Object.entries(files)) {
    await mkdir(join(dir, path, '..'), { recursive: true })
    await writeFile(join(dir, path), text)
  }
  return dir
}

test('the shipped skills are strictly valid, and a folder of the machine adds to them', async (t) => {
  const warnings: object[] = []
  const log = { warn: (fields: object) => void warnings.push(fields) }
  const shipped = await readSeeds(undefined, log)
  assert.deepEqual(warnings, [])
  const dir = await folder(t, {
    'pdf/SKILL.md': main,
    'bare/SKILL.md': '# No front matter',
    'linked/SKILL.md': main.replace('pdf', 'linked'),
    'none/README.md': 'no skill',
  })
  await symlink('/etc/passwd', join(dir, 'linked/key'))
  await symlink(join(dir, 'pdf'), join(dir, 'alias'))
  const all = await readSeeds(dir, log)
  assert.deepEqual(
    all.map(({ name }) => name).filter((name) => !name.startsWith('using-')),
    ['pdf'],
  )
  assert.equal(warnings.length, 3, 'each folder that cannot be used is named')
  assert.deepEqual(await readSeeds(join(dir, 'nowhere'), log), shipped)
})

test('others get turns while a large folder is read', async () => {
  const text = Buffer.alloc(64 * 1024, 'a line of a file\n')
  const parts = Array.from({ length: 64 }, (_, i) => file(`pdf/docs/${i}.md`, text))
  let turns = 0
  let waiting = setImmediate(function again() {
    turns++
    waiting = setImmediate(again)
  })
  const { skill } = await readFolder([file('pdf/SKILL.md', main), ...parts])
  clearImmediate(waiting)
  assert.equal(skill!.files.length, 65)
  assert.ok(turns >= 7, String(turns))
})

test('half of a character in a field is refused, because no database takes it', () => {
  const half = '\ud800'
  const usual = { name: 'a', description: 'What it does', allowedTools: [], metadata: {} }
  for (const more of [
    { description: half },
    { license: half },
    { allowedTools: [half] },
    { metadata: { [half]: 'a' } },
  ]) {
    const { skill, problems } = readWritten({ ...usual, ...more }, 'body')
    assert.equal(skill, undefined)
    assert.match(problems.join(), /holds U\+D800/)
  }
})
