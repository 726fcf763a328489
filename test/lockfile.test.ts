import assert from 'node:assert/strict'
import { glob, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'

interface Locked {
  readonly resolved?: string
  readonly dependencies?: Readonly<Record<string, string>>
  readonly optionalDependencies?: Readonly<Record<string, string>>
}

const root = fileURLToPath(new URL('..', import.meta.url))
// The default install, and what each runtime has of its vendor.
const files = [
  'package-lock.json',
  ...(await Array.fromAsync(glob('runtimes/*/vendor/package-lock.json', { cwd: root }))),
]

for (const file of files) {
  const lock = JSON.parse(await readFile(join(root, file), 'utf8')) as { packages: Record<string, Locked> }

  test(`npm ci accepts ${file}: whatever a package names, optional or not, is locked too`, () => {
    const missing = Object.entries(lock.packages).flatMap(([place, { dependencies, optionalDependencies }]) =>
      Object.keys({ ...dependencies, ...optionalDependencies })
        .filter((name) => !Object.keys(lock.packages).some((other) => other.endsWith(`node_modules/${name}`)))
        .map((name) => `${place || 'package.json'} names ${name}`),
    )
    assert.deepEqual(missing, [])
  })

  test(`${file} names no registry`, () => {
    assert.deepEqual(
      Object.values(lock.packages).filter(({ resolved }) => resolved !== undefined),
      [],
    )
  })
}
