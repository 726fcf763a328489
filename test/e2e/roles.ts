// One role of a cluster: a process of its own, as an operator starts it, or booted in the process of the test.
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { boot } from '#kernel'
import { compilersOfTests } from '#testing'
import { loadRole } from '../../kernel/config.ts'
import { createLogger } from '../../kernel/kit/logger.ts'

export type RoleName = 'dev' | 'memory' | 'conductor' | 'gateway' | 'runner' | 'sidecar' | 'vfs'

export interface Started {
  readonly urls: Readonly<Record<string, string>>
  /** What it logged. */
  readonly output: string[]
  /** As soon as it can, whatever is under way: a process by kill -9. */
  end(): Promise<void>
}

export interface Process extends Started {
  readonly child: ChildProcess
}

const root = fileURLToPath(new URL('../../', import.meta.url))
const fileOf = (role: RoleName): string => `config/${role}.yaml`
/** Each role that loads what its test may not use takes a fifth longer to start; test/fuzz.test.ts loads all of it. */
const inTests = { AGENT_ORC_PRELOAD: 'false' }

/** Boots one role here. Its hops to other roles are those of a process, but it can neither be killed nor told by a signal. */
export async function bootRole(role: RoleName, env: Record<string, string>, config?: string): Promise<Started> {
  const output: string[] = []
  const file = await loadRole(config ?? join(root, fileOf(role)), { env: { ...inTests, ...env }, instead: true })
  const log = createLogger(file.name, file.log?.level ?? 'info', { write: (line) => void output.push(line) })
  const { urls, stop } = await boot(file, { log, compilers: compilersOfTests() })
  return { urls, output, end: stop }
}

/** Starts one role as a process of its own, from its role file unless another one is named. */
export async function spawnRole(role: RoleName, env: Record<string, string>, config = fileOf(role)): Promise<Process> {
  const child = spawn(process.execPath, ['cli/agent-orc.js', 'start', '--json', '--config', config], {
    cwd: root,
    env: { ...inTests, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  const output: string[] = []
  child.stderr.setEncoding('utf8').on('data', (text: string) => void output.push(text))
  const exited = once(child, 'exit').then(() => {
    throw new Error(`role ${role} stopped before it was ready:\n${output.join('')}`)
  })
  exited.catch(() => {})
  const ready = async (): Promise<Record<string, string>> => {
    for await (const line of createInterface({ input: child.stdout })) {
      const message = JSON.parse(line) as { ready?: boolean; urls?: Record<string, string> }
      if (message.ready && message.urls) return message.urls
    }
    return exited
  }
  const urls = await Promise.race([ready(), exited])
  child.stdout.resume()
  const end = async (): Promise<void> => {
    child.kill('SIGKILL')
    await gone(child)
  }
  return { child, urls, output, end }
}

/** Refuses a role that was booted here. */
export function processOf(started: Started): ChildProcess {
  if ('child' in started) return (started as Process).child
  throw new Error('this role has no process of its own: start the cluster with it apart')
}

/** SIGTERM, and waits until the process is gone: its exit code, and how long that took in milliseconds. */
export async function endInOrder(started: Started): Promise<{ code: number | null; ms: number }> {
  const child = processOf(started)
  const since = performance.now()
  child.kill('SIGTERM')
  await gone(child)
  return { code: child.exitCode, ms: performance.now() - since }
}

export const gone = async (child: ChildProcess): Promise<void> => {
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
}
