// `npm test`: every test file, on one PostgreSQL server. `npm test -- plugins/kv --test-name-pattern=claim` runs one folder.
// Most of what a small file costs is its process, so neighbours share one; `node --test` runs any file by itself as well.
import { type ChildProcess, spawn } from 'node:child_process'
import { globSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { basename, join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { stripVTControlCharacters } from 'node:util'

const oldestNode = [24, 12] as const
const folders = ['kernel', 'plugins', 'runtimes', 'providers', 'cli', 'test', 'examples']
const perTestMs = 120_000
// No test may be silent for longer, so a file that is has finished its tests and left something open, or spins.
const silenceMs = perTestMs + 30_000

/** How many files share a process, most of which is loading the service. More would save little, and keep the other processors waiting for the last one. */
const filesPerProcess = 24
/** A file that holds this comment shares its process with none; the comment goes on to say why. */
const alone = /^\/\/ In a process of its own: /m
// The command line, which the tests start often, uses the same cache.
const compileCache = 'node_modules/.cache/agent-orc'

class UsageError extends Error {}

try {
  process.exitCode = await main(process.argv.slice(2))
} catch (error) {
  console.error(error instanceof UsageError ? error.message : error)
  process.exitCode = 1
}

async function main(args: readonly string[]): Promise<number> {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number)
  if (major < oldestNode[0] || (major === oldestNode[0] && minor < oldestNode[1])) {
    throw new UsageError(
      `The tests need Node ${oldestNode.join('.')} or later, this is ${process.version}: use npm test.`,
    )
  }
  process.chdir(fileURLToPath(new URL('../..', import.meta.url)))
  const { paths, flags } = sortArguments(args)
  const files = testFiles(paths.length > 0 ? paths : folders)
  if (files.length === 0) throw new UsageError(`There is no *.test.ts under ${paths.join(', ')}.`)
  // Not before the check above: an older Node would fail on the syntax of what is loaded here.
  const { serverVariables, startTestServer } = await import('../../kernel/testing/database.ts')
  const { server, stop } = await startTestServer()
  const folder = mkdtempSync(join(tmpdir(), 'ao-tests-'))
  try {
    // With flags each file has a process: names of tests are longer in a shared one, and a watched file is restarted alone.
    const size = flags.length > 0 ? 1 : Math.min(filesPerProcess, Math.ceil(files.length / availableParallelism()))
    return await runTests(flags, shareProcesses(files, size, folder), serverVariables(server))
  } finally {
    rmSync(folder, { recursive: true, force: true })
    await stop()
  }
}

/** What exists is a path; anything else is a flag of `node --test`, or the value of the flag before it. */
function sortArguments(args: readonly string[]): { paths: string[]; flags: string[] } {
  const paths: string[] = []
  const flags: string[] = []
  for (const [i, arg] of args.entries()) {
    const value = /^--[^=]+$/.test(args[i - 1] ?? '')
    if (arg.startsWith('-')) flags.push(arg)
    else if (statSync(arg, { throwIfNoEntry: false })) paths.push(arg)
    else if (value) flags.push(arg)
    else throw new UsageError(`There is no file or folder ${arg}.`)
  }
  return { paths, flags }
}

function testFiles(paths: readonly string[]): string[] {
  const files = paths.flatMap((path) =>
    statSync(path, { throwIfNoEntry: false })?.isFile()
      ? [path]
      : globSync(`${path}/**/*.test.ts`, { exclude: (name) => name === 'node_modules' }),
  )
  return [...new Set(files)].sort()
}

/** Returns what `node --test` is given, each a file or a module that runs several, with the files it runs. */
function shareProcesses(
  files: readonly string[],
  size: number,
  folder: string,
): ReadonlyMap<string, readonly string[]> {
  const together = [[]] as string[][]
  const entries = new Map<string, readonly string[]>()
  for (const file of files) {
    if (alone.test(readFileSync(file, 'utf8'))) entries.set(file, [file])
    else if (together.at(-1)!.push(file) === size) together.push([])
  }
  const urlOf = (name: string): string => new URL(`../../kernel/testing/${name}.ts`, import.meta.url).href
  for (const [i, group] of together.entries()) {
    if (group.length <= 1) group.forEach((file) => entries.set(file, group))
    else {
      const entry = join(folder, `process-${String(i + 1).padStart(3, '0')}.mjs`)
      const paths = JSON.stringify(group.map((file) => resolve(file)))
      // One after the other: a static import would load node:test before what it takes its hooks from.
      const [hooks, loader] = ['test-hooks', 'together'].map((name) => `await import('${urlOf(name)}')`)
      writeFileSync(entry, `${hooks}\nconst { runTogether } = ${loader}\nawait runTogether(${paths})\n`)
      entries.set(entry, group)
    }
  }
  return entries
}

async function runTests(
  flags: readonly string[],
  entries: ReadonlyMap<string, readonly string[]>,
  variables: Readonly<Record<string, string>>,
): Promise<number> {
  const child = spawn(
    process.execPath,
    [
      '--test',
      // One more than there are processors: a third of a test's time is waiting.
      `--test-concurrency=${availableParallelism() + 1}`,
      `--test-timeout=${perTestMs}`,
      ...flags,
      ...entries.keys(),
    ],
    {
      // A process group of its own: what a test leaves behind is killed with it.
      detached: true,
      stdio: ['ignore', 'pipe', 'inherit'],
      env: {
        NODE_COMPILE_CACHE: resolve(compileCache),
        ...process.env,
        ...variables,
        ...(process.stdout.isTTY ? { FORCE_COLOR: '1' } : {}),
      },
    },
  )
  const release = forwardSignals(child)
  const output = watchOutput(child.stdout, entries)
  // Interrupted, the runner names the file that hangs; then it is killed.
  const silence = setTimeout(() => {
    kill(child, 'SIGINT')
    setTimeout(() => kill(child, 'SIGKILL'), 5_000).unref()
  }, silenceMs)
  child.stdout.on('data', () => silence.refresh())
  const code = await new Promise<number>((resolve, reject) => {
    child.on('error', reject)
    child.on('exit', (code) => {
      kill(child, 'SIGKILL')
      child.on('close', () => resolve(code ?? 1))
    })
  })
  clearTimeout(silence)
  release()
  for (const [entry, files] of entries) {
    if (output.accused.has(basename(entry))) console.error(`${basename(entry)} ran ${files.join(' ')}`)
  }
  if (output.ran() !== 0) return code
  console.error('No test ran.')
  return 1
}

/**
 * Prints what the runner prints. `ran` counts the tests: a file in which none ran is itself listed and summed up as one.
 * `accused` are the shared processes that failed or hung as a whole, whose names say nothing to a reader.
 */
function watchOutput(
  output: NodeJS.ReadableStream,
  entries: ReadonlyMap<string, unknown>,
): { ran(): number | undefined; accused: ReadonlySet<string> } {
  let rest = ''
  let total: number | undefined
  let emptyFiles = 0
  const accused = new Set<string>()
  output.on('data', (chunk: Buffer) => {
    process.stdout.write(chunk)
    const lines = (rest + chunk.toString()).split('\n')
    rest = lines.pop()!
    for (const line of lines.map(stripVTControlCharacters)) {
      if (entries.has(/^✔ (\S+) \(/.exec(line)?.[1] ?? '')) emptyFiles++
      else for (const [name] of line.matchAll(/\bprocess-\d+\.mjs\b/g)) accused.add(name)
      total = Number(/^(?:ℹ|#) tests (\d+)$/.exec(line)?.[1] ?? total)
    }
  })
  const ran = () => (total === undefined || Number.isNaN(total) ? undefined : Math.max(0, total - emptyFiles))
  return { ran, accused }
}

function forwardSignals(child: ChildProcess): () => void {
  const forward = (signal: NodeJS.Signals): void => kill(child, signal)
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const
  for (const signal of signals) process.on(signal, forward)
  return () => {
    for (const signal of signals) process.off(signal, forward)
  }
}

function kill(child: ChildProcess, signal: NodeJS.Signals): void {
  try {
    process.kill(-child.pid!, signal)
  } catch {
    // The whole group has ended.
  }
}
