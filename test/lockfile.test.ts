import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { test } from 'node:test'

interface Locked {
  readonly resolved?: string
  readonly dependencies?: Readonly<Record<string, string>>
  readonly optionalDependencies?: Readonly<Record<string, string>>
}

const lock = JSON.parse(await readFile(new URL('../package-lock.json', import.meta.url), 'utf8')) as {
  packages: Record<string, Locked>
}

test('npm ci accepts the lock file: whatever a package names, optional or not, is locked too', () => {
  const missing = Object.entries(lock.packages).flatMap(([place, { dependencies, optionalDependencies }]) =>
    Object.keys({ ...dependencies, ...optionalDependencies })
      .filter((name) => !Object.keys(lock.packages).some((other) => other.endsWith(`node_modules/${name}`)))
      .map((name) => `${place || 'package.json'} names ${name}`),
  )
  assert.deepEqual(missing, [])
})

test('the lock file names no registry', () => {
  assert.deepEqual(
    Object.values(lock.packages).filter(({ resolved }) => resolved !== undefined),
    [],
  )
})
