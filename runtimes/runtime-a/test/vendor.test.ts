import assert from 'node:assert/strict'
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { pathToFileURL } from 'node:url'
import { createOutputSchemas } from '#kit/schemas'
import { runSlots } from '#kit/turns'
import { bareSidecar, collectRun, runtimeOf, terminalOf, testEnvelope } from '#testing'
import runtimeA from '../index.ts'
import { createConversations } from '../conversations.ts'
import { createRoot } from '../root.ts'
import { runTurn } from '../index.ts'
import { vendorPackage } from '../sdk.ts'
import { model } from './support.ts'

const name = '@anthropic-ai/claude-agent-sdk'

async function folderOf(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'runtime-a-test-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  return folder
}

async function installed(folder: string, version: string): Promise<void> {
  const place = join(folder, 'node_modules', name)
  await mkdir(place, { recursive: true })
  await writeFile(join(place, 'package.json'), JSON.stringify({ name, version, main: 'sdk.mjs' }))
  await writeFile(join(place, 'sdk.mjs'), 'export const query = () => {}')
}

test('without the vendor’s package a run ends with one sentence that says what to do', async (t) => {
  const folder = await folderOf(t)
  const root = createRoot(folder)
  const vendor = vendorPackage(pathToFileURL(join(folder, 'package.json')))
  const conversations = createConversations(root)
  const deps = {
    vendor,
    conversations,
    root,
    slots: runSlots(1, () => assert.fail('not busy')),
    schemas: createOutputSchemas(),
    log: { warn() {} },
    server: () => assert.fail('not asked for'),
  }
  const events = await collectRun(
    bareSidecar({ contract: 'runtime/1', run: (envelope, signal) => runTurn(envelope, signal, deps) }),
    testEnvelope(model),
  )
  assert.equal(events.length, 1)
  const terminal = terminalOf(events)
  assert.ok(terminal.type === 'error')
  assert.equal(terminal.code, 'runtime_not_installed')
  assert.equal(
    terminal.message,
    `runtime_a needs the package ${name}: run \`npm run runtimes:install runtime_a\`, or \`npm install ${name}@0.3\` where agent-orc is installed from npm.`,
  )
  assert.equal(terminal.message, vendor.missing)
})

test('it is found as soon as it is installed; another line of it is not used', async (t) => {
  const folder = await folderOf(t)
  const vendor = vendorPackage(pathToFileURL(join(folder, 'package.json')))
  assert.match(vendor.missing ?? '', /^runtime_a needs the package/)
  await installed(folder, '0.4.0')
  assert.match(
    vendor.missing ?? '',
    /^runtime_a works with .* 0\.3, and 0\.4\.0 is installed: run `npm run runtimes:install/,
  )
  await installed(folder, '0.3.999')
  assert.equal(vendor.missing, undefined)
  assert.equal(typeof (await vendor.load()).query, 'function')
})

test('its version is pinned in one place, of the line that is used', async () => {
  const pinned = JSON.parse(await readFile(new URL('../vendor/package.json', import.meta.url), 'utf8')) as {
    dependencies: Record<string, string>
  }
  assert.deepEqual(Object.keys(pinned.dependencies), [name])
  assert.match(pinned.dependencies[name]!, /^0\.3\.\d+$/)
})

test('the role boots without it, or with it, and writes nothing before it has something to write', async (t) => {
  const folder = await folderOf(t)
  const before = process.env['TMPDIR']
  process.env['TMPDIR'] = folder
  t.after(() => {
    if (before === undefined) delete process.env['TMPDIR']
    else process.env['TMPDIR'] = before
  })
  const runtime = await runtimeOf(t, 'runtime_a', [runtimeA])
  assert.equal(runtime.missing, vendorPackage().missing)
  assert.equal(await runtime.exportState!('s'), undefined)
  assert.deepEqual(await readdir(folder), [])
})

test('its folder is there when it is used, also after the machine has swept it away, and gone when it stops', async (t) => {
  const folder = await folderOf(t)
  const root = createRoot(folder)
  for (let i = 0; i < 2; i++) {
    await writeFile(join(await root.folder('sessions'), 'a'), 'x')
    await rm(root.path, { recursive: true })
  }
  await root.folder('sessions')
  await root.remove()
  assert.deepEqual(await readdir(folder), [])
})
