import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { test } from 'node:test'
import { promisify } from 'node:util'

const cwd = fileURLToPath(new URL('..', import.meta.url))

test('the npm package holds what runs and what authors read, no tests, no benchmark and no vendor package', async () => {
  const { stdout } = await promisify(execFile)('npm', ['pack', '--dry-run', '--json', '--ignore-scripts'], { cwd })
  const report: unknown = JSON.parse(stdout)
  // A list, or an object by package name: it depends on npm's version.
  const [packed] = Object.values(report as object) as { files: { path: string }[] }[]
  const files = packed!.files.map((file) => file.path)
  const needed = [
    'cli/agent-orc.js',
    'cli/main.ts',
    'config/dev.yaml',
    'config/memory.yaml',
    'config/role.schema.json',
    'docs/plugins.md',
    'kernel/http/listener.ts',
    'kernel/kit/archive.ts',
    'kernel/kit/index.ts',
    'kernel/kit/postgres/server.ts',
    'kernel/contracts/runtime.ts',
    'kernel/index.ts',
    'kernel/testing/index.ts',
    'migrations/0001_database_tenants.sql',
    'plugins/chat/index.ts',
    'providers/model-openai/index.ts',
    'runtimes/general/index.ts',
  ]
  assert.deepEqual(
    needed.filter((file) => !files.includes(file)),
    [],
  )
  assert.deepEqual(
    files.filter((file) => /(^|\/)test\/|\.test\.ts$|node_modules\/|^cli\/scripts\/|^\.ci\//.test(file)),
    [],
  )
})
