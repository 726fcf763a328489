import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { test, type TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import { testRuntime } from 'agent-orc/testing'

const file = fileURLToPath(new URL('../sidecar.py', import.meta.url))

test('the guide shows this sidecar exactly', async () => {
  const guide = await readFile(new URL('../../../docs/plugins.md', import.meta.url), 'utf8')
  assert.ok(guide.includes(`\`\`\`python\n${await readFile(file, 'utf8')}\`\`\``))
})

async function start(t: TestContext): Promise<string> {
  const child = spawn('python3', [file, '0'], { stdio: ['ignore', 'pipe', 'inherit'] })
  t.after(() => child.kill())
  const [port] = (await once(child.stdout, 'data')) as [Buffer]
  return `http://127.0.0.1:${port.toString().trim()}`
}

if (spawnSync('python3', ['--version']).status === 0) {
  testRuntime('general', start, {
    say: (word) => word,
    hang: 'wait',
    memory: { tell: (word) => word, ask: 'recall' },
  })
} else test('a sidecar in Python', { skip: 'there is no python3 on this machine' })
