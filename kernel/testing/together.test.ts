import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { test, type TestContext } from 'node:test'

/** Runs files of these contents in one process: the lines that name a test or a file, and whether all is well. */
async function together(t: TestContext, contents: Readonly<Record<string, string>>) {
  const folder = await mkdtemp(join(tmpdir(), 'ao-together-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  const names = Object.keys(contents)
  for (const name of names) {
    await writeFile(join(folder, name), `import { before, test } from 'node:test'\n${contents[name]!}`)
  }
  const loader = new URL('together.ts', import.meta.url).href
  const paths = names.map((name) => join(folder, name))
  const entry = join(folder, 'process.mjs')
  await writeFile(entry, `import { runTogether } from '${loader}'\nawait runTogether(${JSON.stringify(paths)})\n`)
  const { NODE_TEST_CONTEXT: _, ...env } = process.env
  const child = spawn(process.execPath, ['--test', '--test-reporter=spec', entry], {
    cwd: folder,
    env,
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const [said, [code]] = await Promise.all([text(child.stdout), once(child, 'close')])
  const output = said.split('✖ failing tests')[0]!
  const lines = [...output.matchAll(/^ *([▶✔✖] .+?)(?: \([\d.]+ms\))?$/gm)].map((match) => match[1])
  return { lines, ok: code === 0 }
}

test('files that share a process are told apart, and each has its own hooks', async (t) => {
  const one = `let ready = false\nbefore(() => (ready = true))\ntest('one', () => ready || process.exit(1))`
  const { lines, ok } = await together(t, { 'a.mjs': one, 'b.mjs': `test('two', () => {})` })
  assert.deepEqual(lines, ['▶ a.mjs', '✔ one', '✔ a.mjs', '▶ b.mjs', '✔ two', '✔ b.mjs'])
  assert.equal(ok, true)
})

test('a file is loaded when the one before it has ended', async (t) => {
  const late = {
    'a.mjs': `test('late', () => (globalThis.ended = true))`,
    'b.mjs': `if (!globalThis.ended) throw new Error()`,
  }
  assert.deepEqual(await together(t, late), { lines: ['▶ a.mjs', '✔ late', '✔ a.mjs', '✔ b.mjs'], ok: true })
})

test('a file that cannot be loaded fails, and the others run', async (t) => {
  const { lines, ok } = await together(t, { 'a.mjs': `import './missing.mjs'`, 'b.mjs': `test('two', () => {})` })
  assert.deepEqual(lines, ['▶ a.mjs', '✖ it can be loaded', '✖ a.mjs', '▶ b.mjs', '✔ two', '✔ b.mjs'])
  assert.equal(ok, false)
})

test('a test that ends the process with success takes no other along unseen', async (t) => {
  const leaves = { 'a.mjs': `test('leaves', () => process.exit(0))`, 'b.mjs': `test('two', () => {})` }
  assert.equal((await together(t, leaves)).ok, false)
})
