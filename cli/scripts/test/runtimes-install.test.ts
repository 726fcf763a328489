import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { glob, readFile } from 'node:fs/promises'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'

const root = fileURLToPath(new URL('../../..', import.meta.url))

test('runtimes:install says which runtimes have a vendor package, and installs none when a name is wrong', async () => {
  const failed = (await promisify(execFile)(
    process.execPath,
    ['cli/scripts/runtimes-install.ts', 'runtime_a', 'runtime_z'],
    {
      cwd: root,
    },
  ).catch((error: unknown) => error)) as { code: number; stdout: string; stderr: string }
  assert.equal(failed.code, 1)
  assert.equal(failed.stdout, '')
  assert.equal(failed.stderr, 'There is no vendor package for runtime_z; there is one for runtime_a, runtime_b.\n')
})

test('every vendor package is pinned to an exact version, with a lock file that agrees', async () => {
  for await (const file of glob('runtimes/*/vendor/package.json', { cwd: root })) {
    const read = async (path: string) =>
      JSON.parse(await readFile(`${root}/${path}`, 'utf8')) as Record<string, unknown>
    const { dependencies, private: hidden } = await read(file)
    const lock = await read(file.replace('package.json', 'package-lock.json'))
    assert.equal(hidden, true)
    for (const [name, version] of Object.entries(dependencies as Record<string, string>)) {
      assert.match(version, /^\d+\.\d+\.\d+$/)
      const locked = (lock['packages'] as Record<string, { version: string; integrity: string }>)[
        `node_modules/${name}`
      ]!
      assert.equal(locked.version, version)
      assert.match(locked.integrity, /^sha512-/)
    }
  }
})
