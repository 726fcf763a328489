import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { pathToFileURL } from 'node:url'
import { runtimeOf, sidecarAt, testKernel, testRuntime } from 'agent-orc/testing'
import type { Plugin } from 'agent-orc/kernel'

const at = (path: string): URL => new URL(`../../../${path}`, import.meta.url)
const guide = await readFile(at('docs/plugins.md'), 'utf8')
const example = await readFile(at('examples/echo-runtime/index.ts'), 'utf8')

/** The code blocks of a language, in the order of the guide. */
const blocks = (language: string): string[] =>
  [...guide.matchAll(new RegExp(`\`\`\`${language}\\n(.*?)\`\`\``, 'gs'))].map((match) => match[1]!)

test('the guide shows the example file exactly, and it has at most 60 lines', () => {
  assert.equal(blocks('ts')[0], example)
  assert.ok(example.trimEnd().split('\n').length <= 60)
})

test('the test that the guide shows is the example test', async () => {
  assert.equal(blocks('ts')[1], await readFile(at('examples/echo-runtime/test/echo.test.ts'), 'utf8'))
})

// What a stranger does: copies the code out of the guide into a file of their own, and adds it to a sidecar.
const folder = await mkdtemp(join(import.meta.dirname, 'guide-'))
try {
  const file = join(folder, 'index.ts')
  await writeFile(file, blocks('ts')[0]!)
  const { default: plugin } = (await import(pathToFileURL(file).href)) as { default: Plugin }
  const runHost = (await import(at('plugins/run-host/index.ts').href)) as { default: Plugin }
  const script = {
    say: (word: string) => word,
    hang: 'wait',
    memory: { tell: (word: string) => word, ask: 'recall' },
  }
  testRuntime('echo', (t) => runtimeOf(t, 'echo', [plugin]), script)

  testRuntime(
    'echo',
    async (t) => {
      const options = { listen: true, listeners: ['sidecar'] }
      const host = { name: 'run-host', plugin: runHost.default, config: { drain: '0s' } }
      const { urls } = await testKernel(t, [plugin, host], options)
      assert.equal((await sidecarAt(urls['sidecar']!).health()).runtime, 'all')
      return urls['sidecar']!
    },
    script,
  )
} finally {
  await rm(folder, { recursive: true })
}
