// `npm test`: every test file, on one PostgreSQL server. `npm test -- plugins/kv --test-name-pattern=claim` runs one folder.
import { type ChildProcess, spawn } from 'node:child_process'
import { globSync, statSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'
import { stripVTControlCharacters } from 'node:util'

const oldestNode = [24, 12] as const
const folders = ['kernel', 'plugins', 'runtimes', 'providers', 'cli', 'test', 'examples']
const perTestMs = 120_000
// No test may be silent for longer, so a file that is has finished its tests and left something open, or spins.
const silenceMs = perTestMs + 30_000

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
  try {
    return await runTests([...flags, ...files], serverVariables(server))
  } finally {
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

async function runTests(args: readonly string[], variables: Readonly<Record<string, string>>): Promise<number> {
  const child = spawn(
    process.execPath,
    ['--test', `--test-concurrency=${availableParallelism()}`, `--test-timeout=${perTestMs}`, ...args],
    {
      // A process group of its own: what a test leaves behind is killed with it.
      detached: true,
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { ...process.env, ...variables, ...(process.stdout.isTTY ? { FORCE_COLOR: '1' } : {}) },
    },
  )
  const release = forwardSignals(child)
  const ran = countTests(child.stdout)
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
  if (ran() !== 0) return code
  console.error('No test ran.')
  return 1
}

/** Prints what the runner prints, and counts: a file in which no test ran is itself listed and summed up as one. */
function countTests(output: NodeJS.ReadableStream): () => number | undefined {
  let rest = ''
  let total: number | undefined
  let emptyFiles = 0
  output.on('data', (chunk: Buffer) => {
    process.stdout.write(chunk)
    const lines = (rest + chunk.toString()).split('\n')
    rest = lines.pop()!
    for (const line of lines.map(stripVTControlCharacters)) {
      if (/^✔ \S+\.test\.ts \(/.test(line)) emptyFiles++
      total = Number(/^(?:ℹ|#) tests (\d+)$/.exec(line)?.[1] ?? total)
    }
  })
  return () => (total === undefined || Number.isNaN(total) ? undefined : Math.max(0, total - emptyFiles))
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
