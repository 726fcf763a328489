import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { test } from 'node:test'

const root = new URL('../', import.meta.url)
const guide = new URL('docs/contributing.md', root)

test('docs/contributing.md: every file and folder that it names is there', async () => {
  const text = await readFile(guide, 'utf8')
  const links = [...text.matchAll(/\]\(([^)#]+)[^)]*\)/g)].map(([, path]) => new URL(path!, guide))
  // In backticks a path begins with a folder of the root. What is still to be written has a <placeholder> in it.
  const folders = (await readdir(root, { withFileTypes: true })).filter((one) => one.isDirectory())
  const quoted = [...text.matchAll(/`([\w.-]+)(\/[\w./-]+)`/g)]
    .filter(([, folder]) => folders.some(({ name }) => name === folder))
    .map(([, folder, rest]) => new URL(folder! + rest!, root))
  assert.ok(links.length > 30 && quoted.length > 1)
  assert.deepEqual(
    [...links, ...quoted].filter((url) => !existsSync(url)).map(({ pathname }) => pathname),
    [],
  )
})

test('docs/contributing.md: a command that it names is one of package.json', async () => {
  const { scripts } = JSON.parse(await readFile(new URL('package.json', root), 'utf8')) as { scripts: object }
  const named = [...(await readFile(guide, 'utf8')).matchAll(/npm run ([\w:-]+)/g)].map(([, name]) => name!)
  assert.ok(named.length > 3)
  assert.deepEqual(
    named.filter((name) => !(name in scripts)),
    [],
  )
})
