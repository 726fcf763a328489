import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { pathToFileURL } from 'node:url'
import {
  runtimeOf,
  sandboxProviderOf,
  sidecarAt,
  testKernel,
  testRuntime,
  testSandboxProvider,
} from 'agent-orc/testing'
import type { Plugin } from 'agent-orc/kernel'

const at = (path: string): URL => new URL(`../../../${path}`, import.meta.url)
const guide = await readFile(at('docs/plugins.md'), 'utf8')

/** The code blocks of a language, in the order of the guide. */
const blocks = (language: string): string[] =>
  [...guide.matchAll(new RegExp(`\`\`\`${language}\\n(.*?)\`\`\``, 'gs'))].map((match) => match[1]!)

/** What the guide shows whole, and how long it may be. */
const shown = [
  ['examples/echo-runtime/index.ts', 60],
  ['examples/plain-sandbox/index.ts', 100],
  ['examples/plain-sandbox/test/plain.test.ts', 20],
  ['examples/echo-runtime/test/echo.test.ts', 20],
] as const

for (const [file, lines] of shown) {
  test(`the guide shows ${file} exactly, and it has at most ${lines} lines`, async () => {
    const source = await readFile(at(file), 'utf8')
    assert.ok(blocks('ts').includes(source))
    assert.ok(source.trimEnd().split('\n').length <= lines)
  })
}

// What a stranger does: copies the code out of the guide into a file of their own, and adds it to a sidecar.
const folder = await mkdtemp(join(import.meta.dirname, 'guide-'))
try {
  const copied = async (name: string, block: string): Promise<Plugin> => {
    const file = join(folder, `${name}.ts`)
    await writeFile(file, block)
    return ((await import(pathToFileURL(file).href)) as { default: Plugin }).default
  }
  const plugin = await copied(
    'echo',
    blocks('ts').find((block) => block.includes('defineRuntime('))!,
  )
  const plain = await copied(
    'plain',
    blocks('ts').find((block) => block.includes('defineSandboxProvider('))!,
  )
  testSandboxProvider('plain', (t) => sandboxProviderOf(t, 'plain', [plain]), {
    cannot: { copies: 'A process that leaves the group of its worker is not followed.' },
  })
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
