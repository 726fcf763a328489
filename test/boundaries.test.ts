import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { glob } from 'node:fs/promises'
import { dirname, join, relative, resolve } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
const isTest = (file: string): boolean => file.endsWith('.test.ts') || file.includes('/test/')

/** What may be replaced by configuration: nothing else may know its folder. */
const unitOf = (file: string): string | undefined => /^(plugins|runtimes|providers)\/[^/]+/.exec(file)?.[0]

const sources = async (...patterns: string[]): Promise<string[]> => {
  const files: string[] = []
  // Vendor packages of runtimes lie below the runtimes.
  const exclude = (name: string): boolean => name.endsWith('node_modules')
  for await (const file of glob(patterns, { cwd: root, exclude })) files.push(file)
  return files.sort()
}

/** The code without its comments, which may mention imports and variables. */
const codeOf = async (file: string): Promise<string> =>
  (await readFile(join(root, file), 'utf8')).replaceAll(/\/\*[^]*?\*\/|^\s*\/\/.*$/gm, '')

const importsOf = async (file: string): Promise<string[]> => {
  const code = await codeOf(file)
  const statements = code.matchAll(/\b(?:from|import)\s*\(?\s*'([^']+)'/g)
  return [...statements].map((match) => match[1]!)
}

/** Where an import leads, as a path in this repository; undefined for libraries. */
const target = (file: string, specifier: string): string | undefined =>
  specifier.startsWith('.') ? relative(root, resolve(root, dirname(file), specifier)) : undefined

const offences = async (files: string[], wrong: (file: string, specifier: string) => boolean): Promise<string[]> => {
  const found: string[] = []
  for (const file of files) {
    for (const specifier of await importsOf(file)) {
      if (wrong(file, specifier)) found.push(`${file} imports ${specifier}`)
    }
  }
  return found
}

test('a unit imports the kernel, contracts, libraries and itself, never another unit', async () => {
  const files = await sources('{plugins,runtimes,providers}/**/*.ts')
  assert.ok(files.length > 50, 'the units were found')
  const wrong = await offences(files, (file, specifier) => {
    const own = unitOf(file)
    const to = target(file, specifier)
    if (to !== undefined) return unitOf(to) !== own
    if (!specifier.startsWith('#')) return false
    if (specifier === '#kernel' || specifier.startsWith('#contracts/')) return false
    // The launcher of the embedded PostgreSQL; only its plugin starts it.
    if (specifier === '#kit/postgres') return own !== 'plugins/embedded-postgres'
    // The kit is what several units need and no library gives.
    if (specifier === '#kit' || specifier.startsWith('#kit/')) return false
    return !(specifier === '#testing' && isTest(file))
  })
  assert.deepEqual(wrong, [])
})

test('the kernel and its contracts know no unit, and contracts know only the kernel’s public side', async () => {
  const kernel = await sources('kernel/**/*.ts')
  const outside = await offences(
    kernel.filter((file) => !isTest(file) && !file.startsWith('kernel/testing/')),
    (file, specifier) => {
      const to = target(file, specifier)
      return to !== undefined && !to.startsWith('kernel/')
    },
  )
  assert.deepEqual(outside, [])
  // Contracts may import the types they are written in: plugins, errors, listeners.
  const words = ['kernel/plugin.ts', 'kernel/http/app.ts', 'kernel/http/access.ts']
  const inside = await offences(await sources('kernel/contracts/**/*.ts'), (file, specifier) => {
    const to = target(file, specifier)
    return specifier.startsWith('#') || (to !== undefined && !to.startsWith('kernel/contracts/') && !words.includes(to))
  })
  assert.deepEqual(inside, [])
})

test('contracts do no I/O: they import only what computes', async () => {
  const pure = ['node:buffer', 'node:crypto', 'node:util', 'node:vm']
  const talkers = ['undici', 'pg', 'ioredis']
  const wrong = await offences(
    (await sources('kernel/contracts/**/*.ts')).filter((file) => !isTest(file)),
    (_file, specifier) => talkers.includes(specifier) || (specifier.startsWith('node:') && !pure.includes(specifier)),
  )
  assert.deepEqual(wrong, [])
})

test('process.env is read in kernel/config*.ts alone', async () => {
  const files = await sources('{kernel,plugins,runtimes,providers,cli}/**/*.ts')
  const found: string[] = []
  for (const file of files) {
    // The scripts of this repository stand behind no role file.
    const outside = isTest(file) || file.startsWith('kernel/testing/') || file.startsWith('cli/scripts/')
    if (outside || /^kernel\/config[^/]*\.ts$/.test(file)) continue
    if (/\bprocess\.env\b|\benv\b[^'\n]*from 'node:process'/.test(await codeOf(file))) found.push(file)
  }
  assert.deepEqual(found, [])
})

test('no module of a unit or of the kernel keeps state: top-level let and mutable collections are refused', async () => {
  const files = await sources('{kernel,plugins,runtimes,providers}/**/*.ts')
  const found: string[] = []
  for (const file of files) {
    if (isTest(file) || file.startsWith('kernel/testing/')) continue
    for (const line of (await codeOf(file)).split('\n')) {
      if (
        /^(export )?let /.test(line) ||
        /^(export )?const \w+(: [^=]+)? = new (Map|Set|WeakMap|WeakSet)(<[^(]*>)?\(\)/.test(line)
      ) {
        found.push(`${file}: ${line.trim()}`)
      }
    }
  }
  assert.deepEqual(found, [])
})

test('the kernel stays small: its files and those of kernel/http keep their budgets of lines', async () => {
  const linesOf = async (pattern: string): Promise<number> => {
    const texts = await Promise.all((await sources(pattern)).map((file) => readFile(join(root, file), 'utf8')))
    return texts.reduce((sum, text) => sum + text.split('\n').length - 1, 0)
  }
  // Files over 350 lines and functions over 80 are refused by the linter, see .oxlintrc.json.
  for (const [pattern, budget] of [
    ['kernel/*.ts', 750],
    ['kernel/http/*.ts', 1_200],
  ] as const) {
    const lines = await linesOf(pattern)
    assert.ok(lines > budget / 2, `${pattern} was found`)
    assert.ok(lines <= budget, `${pattern} has ${lines} lines, of ${budget}`)
  }
})

test('no file imports itself by way of others, types included', async () => {
  const { imports } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8')) as {
    imports: Readonly<Record<string, string>>
  }
  const files = await sources('{kernel,plugins,runtimes,providers,cli,test,examples}/**/*.ts')
  const leads = (file: string, specifier: string): string | undefined =>
    target(file, specifier) ??
    imports[specifier]?.slice(2) ??
    imports['#contracts/*']!.slice(2).replace('*', /^#contracts\/(.+)/.exec(specifier)?.[1] ?? '')
  const graph = new Map<string, string[]>()
  for (const file of files) {
    const specifiers = await importsOf(file)
    graph.set(
      file,
      specifiers.map((specifier) => leads(file, specifier)!).filter((to) => files.includes(to)),
    )
  }
  assert.deepEqual(circlesIn(graph), [])
  assert.deepEqual(
    circlesIn(
      new Map([
        ['a', ['b']],
        ['b', ['a']],
      ]),
    ),
    ['a -> b -> a'],
  )
})

/** Depth first: an import of a file that is still being followed closes a circle. */
function circlesIn(graph: ReadonlyMap<string, readonly string[]>): string[] {
  const circles: string[] = []
  const done = new Set<string>()
  const follow = (file: string, path: readonly string[]): void => {
    const at = path.indexOf(file)
    if (at >= 0) return void circles.push([...path.slice(at), file].join(' -> '))
    if (done.has(file)) return
    for (const to of graph.get(file) ?? []) follow(to, [...path, file])
    done.add(file)
  }
  for (const file of graph.keys()) follow(file, [])
  return circles
}
