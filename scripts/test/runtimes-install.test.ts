import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { copyFile, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'

const script = fileURLToPath(new URL('../runtimes-install.ts', import.meta.url))

test('an install that fails leaves what is there as it was, and nothing else', async (t) => {
  const root = await mkdtemp(join(tmpdir(), 'runtimes-install-'))
  t.after(() => rm(root, { recursive: true }))
  const vendor = join(root, 'runtimes/runtime-x/vendor')
  const old = join(vendor, 'node_modules/some-sdk')
  await mkdir(old, { recursive: true })
  await mkdir(join(root, 'scripts'))
  await writeFile(join(root, 'package.json'), '{"type":"module"}')
  await copyFile(script, join(root, 'scripts/runtimes-install.ts'))
  await writeFile(join(old, 'package.json'), '{"name":"some-sdk","version":"1.0.0"}')
  const manifest = { name: 'vendor', version: '0.0.0', private: true, dependencies: { 'some-sdk': '2.0.0' } }
  await writeFile(join(vendor, 'package.json'), JSON.stringify(manifest))
  const locked = { version: '2.0.0', resolved: 'file:nowhere.tgz', integrity: 'sha512-AAAA' }
  const packages = { '': manifest, 'node_modules/some-sdk': locked }
  const lock = { name: 'vendor', version: '0.0.0', lockfileVersion: 3, requires: true, packages }
  await writeFile(join(vendor, 'package-lock.json'), JSON.stringify(lock))
  await assert.rejects(
    promisify(execFile)(process.execPath, [join(root, 'scripts/runtimes-install.ts')]),
    (error: Error & { stderr: string }) => /npm could not install some-sdk@2\.0\.0/.test(error.stderr),
  )
  assert.match(await readFile(join(old, 'package.json'), 'utf8'), /1\.0\.0/)
  assert.deepEqual((await readdir(vendor)).toSorted(), ['node_modules', 'package-lock.json', 'package.json'])
})
