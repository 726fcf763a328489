import assert from 'node:assert/strict'
import { chmod, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { createSkillFolders } from '../index.ts'

async function folderWith(t: TestContext, files: Record<string, string | Buffer>): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'agent-orc-skills-'))
  t.after(() => rm(dir, { recursive: true, force: true }))
  for (const [path, text] of Object.entries(files)) {
    await mkdir(dirname(join(dir, path)), { recursive: true })
    await writeFile(join(dir, path), text)
  }
  return dir
}

test('a skill is a folder with a SKILL.md; its files come with their paths and whether they are executable', async (t) => {
  const dir = await folderWith(t, {
    'pdf/SKILL.md': '# PDF',
    'pdf/scripts/convert.sh': '#!/bin/sh',
    'notes/README.md': 'no skill',
  })
  await chmod(join(dir, 'pdf/scripts/convert.sh'), 0o755)
  const skills = createSkillFolders(dir)
  assert.deepEqual(await skills.unknown('t', ['pdf', 'notes', 'none']), ['notes', 'none'])
  const files = (await skills.files('t', 'pdf'))!.toSorted((a, b) => (a.path < b.path ? -1 : 1))
  assert.deepEqual(
    files.map(({ path, executable, bytes }) => [path, executable, Buffer.from(bytes).toString()]),
    [
      ['SKILL.md', false, '# PDF'],
      ['scripts/convert.sh', true, '#!/bin/sh'],
    ],
  )
  assert.equal(await skills.files('t', 'notes'), undefined)
})

test('no name leaves the folder, and links in a skill are left out', async (t) => {
  const dir = await folderWith(t, { 'skills/a/SKILL.md': 'a', 'secret/SKILL.md': 'secret', 'secret/key': 'canary' })
  const skills = createSkillFolders(join(dir, 'skills'))
  await symlink(join(dir, 'secret/key'), join(dir, 'skills/a/key'))
  await symlink(join(dir, 'secret'), join(dir, 'skills/a/folder'))
  const names = ['../secret', '..', '.', '', 'a/../../secret', 'A', 'a\0']
  assert.deepEqual(await skills.unknown('t', names), names)
  assert.deepEqual(
    (await skills.files('t', 'a'))!.map(({ path }) => path),
    ['SKILL.md'],
  )
})

test('a skill that is too large is refused with its name', async (t) => {
  const dir = await folderWith(t, { 'big/SKILL.md': 'a', 'big/data': Buffer.alloc(9 * 1024 * 1024) })
  await assert.rejects(createSkillFolders(dir).files('t', 'big'), /The skill 'big' is larger than 8 MiB/)
})

test('without a folder there are no skills', async () => {
  const skills = createSkillFolders(undefined)
  assert.deepEqual(await skills.unknown('t', ['a']), ['a'])
  assert.equal(await skills.files('t', 'a'), undefined)
})
