import assert from 'node:assert/strict'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { codexProgram } from '../app-server.ts'

/** A project with these packages installed, seen from inside it. */
async function project(t: TestContext, packages: Readonly<Record<string, string>>): Promise<URL> {
  const folder = await mkdtemp(join(tmpdir(), 'agent-orc-test-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  const from = pathToFileURL(join(folder, 'node_modules/agent-orc/runtimes/runtime-b/vendor/package.json'))
  await install(from, packages)
  return from
}

async function install(from: URL, packages: Readonly<Record<string, string>>): Promise<void> {
  for (const [name, version] of Object.entries(packages)) {
    const path = fileURLToPath(new URL(`../../../../${name}/package.json`, from))
    await mkdir(dirname(path), { recursive: true })
    await writeFile(path, JSON.stringify({ name, version }))
  }
}

test('without the package a sentence says what to install', async (t) => {
  const { missing, path } = codexProgram(await project(t, {}))
  assert.equal(
    missing,
    'runtime_b needs the package @openai/codex: run `npm run runtimes:install runtime_b`, or `npm install @openai/codex@0.163` where agent-orc is installed from npm.',
  )
  assert.throws(path, { code: 'runtime_not_installed', status: 503, message: missing })
})

test('the package is found beside agent-orc, too, and its part for this machine must be there', async (t) => {
  const platform = `@openai/codex-${process.platform}-${process.arch}`
  const found = codexProgram(await project(t, { '@openai/codex': '0.163.4', [platform]: '0.163.4' }))
  assert.equal(found.missing, undefined)
  assert.match(found.path(), /node_modules.@openai.codex-[a-z0-9-]+.vendor.[a-z0-9_-]+.bin.codex$/)
  assert.match(codexProgram(await project(t, { '@openai/codex': '0.163.4' })).missing!, /needs the package/)
})

test('installing it needs no restart', async (t) => {
  const from = await project(t, {})
  const program = codexProgram(from)
  assert.ok(program.missing)
  const platform = `@openai/codex-${process.platform}-${process.arch}`
  await install(from, { '@openai/codex': '0.163.0', [platform]: '0.163.0' })
  assert.equal(program.missing, undefined)
})

test('another line is refused: it may have tools that this one has not', async (t) => {
  const { missing } = codexProgram(await project(t, { '@openai/codex': '0.170.0' }))
  assert.match(missing!, /0\.163, and 0\.170\.0 is installed/)
})
