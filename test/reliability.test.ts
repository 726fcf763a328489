import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
const groups = { R: 9, S: 5, O: 7 }

test('docs/reliability.md names a test for every invariant of runs, streams and operations, and each one exists', async () => {
  const text = await readFile(join(root, 'docs/reliability.md'), 'utf8')
  const rows = [...text.matchAll(/^\| ([RSO]\d+) \| [^|]+ \| `([^`]+)` \| ([^|]+) \|$/gm)]
  const named = new Set(rows.map(([, id]) => id))
  for (const [group, count] of Object.entries(groups)) {
    for (let i = 1; i <= count; i++) {
      const id = `${group}${i}`
      assert.ok(named.has(id), `${id} has no row`)
    }
  }
  for (const [, id, file, title] of rows) {
    const source = await readFile(join(root, file!), 'utf8').catch(() => assert.fail(`${id}: there is no ${file}`))
    assert.ok(source.includes(title!.trim()), `${id}: ${file} has no test “${title}”`)
  }
})
