import assert from 'node:assert/strict'
import { access, readFile } from 'node:fs/promises'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'

const root = new URL('../', import.meta.url)

test('each noun of the glossary is said once, and the file that owns it is there', async () => {
  const text = await readFile(new URL('docs/glossary.md', root), 'utf8')
  const rows = [...text.matchAll(/^\| (?!Noun)([^|-][^|]*?) \| (.+?) \| `([^`]+)` \|$/gm)].map(([, noun, , file]) => ({
    noun: noun!,
    file: file!,
  }))
  assert.equal(rows.length, text.match(/^\| (?!Noun)/gm)?.length, 'every row is read')
  assert.ok(rows.length > 50)
  const nouns = rows.map(({ noun }) => noun)
  assert.deepEqual(
    nouns.filter((noun, i) => nouns.indexOf(noun) !== i),
    [],
  )
  const missing: string[] = []
  for (const { noun, file } of rows) {
    await access(fileURLToPath(new URL(file, root))).catch(() => missing.push(`${noun}: ${file}`))
  }
  assert.deepEqual(missing, [])
})
