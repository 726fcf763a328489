import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'

const bin = fileURLToPath(new URL('../agent-orc.js', import.meta.url))
const several = fileURLToPath(new URL('several.ts', import.meta.url))

export interface Finished {
  readonly code: number | null
  readonly stdout: string
  readonly stderr: string
}

/** Starts the command as a user would, with nothing of this process's environment but what finds programs. */
export const start = (t: TestContext, args: readonly string[], env: Record<string, string> = {}) =>
  startFile(t, bin, args, env)

function startFile(t: TestContext, file: string, args: readonly string[], env: Readonly<Record<string, string>>) {
  const { PATH, HOME } = process.env
  const child: ChildProcess = spawn(process.execPath, [file, ...args], {
    env: { PATH, HOME, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  t.after(() => child.kill('SIGKILL'))
  let stdout = ''
  let stderr = ''
  child.stdout!.on('data', (data) => {
    stdout += data
  })
  child.stderr!.on('data', (data) => {
    stderr += data
  })
  const closed = once(child, 'close') as Promise<[number | null]>
  const lines = createInterface({ input: child.stdout! })[Symbol.asyncIterator]()
  return {
    child,
    /** The next line of stdout, or the whole stderr as a failure when the command ended instead. */
    async line(): Promise<string> {
      const { value, done } = await lines.next()
      if (done) throw new Error(`ended without another line:\n${stderr}`)
      return value as string
    },
    /** Resolves once this was said on stderr, and rejects when the command ends without it. */
    async says(text: string): Promise<void> {
      const ended = closed.then(() => assert.ok(stderr.includes(text), `ended without saying '${text}':\n${stderr}`))
      ended.catch(() => {})
      while (!stderr.includes(text)) await Promise.race([once(child.stderr!, 'data'), ended])
    },
    async finished(): Promise<Finished> {
      const [code] = await closed
      return { code, stdout, stderr }
    },
  }
}

export const run = (t: TestContext, args: readonly string[], env: Record<string, string> = {}): Promise<Finished> =>
  start(t, args, env).finished()

/** Command lines one after the other in one process, for what says no more of each than its arguments do. */
export async function severally(t: TestContext, commands: readonly (readonly string[])[]): Promise<Finished[]> {
  const { NODE_COMPILE_CACHE = '' } = process.env
  const args = [JSON.stringify(commands)]
  const { stdout, stderr } = await startFile(t, several, args, { NODE_COMPILE_CACHE }).finished()
  assert.equal(stderr, '')
  return JSON.parse(stdout) as Finished[]
}

export async function emptyFolder(t: TestContext): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'agent-orc-cli-'))
  t.after(() => rm(path, { recursive: true, force: true }))
  return path
}
