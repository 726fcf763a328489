import { randomBytes } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { mkdtemp, realpath, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { pino } from 'pino'
import { BootError } from '#kernel'
import { LocalSidecars } from '#contracts/sidecar'
import type { ToolResult } from '#contracts/tools'
import { fake, testKernel, type TestKernel } from '#testing'
import { WorkerIdentity } from '../identity/identity.ts'
import worker from '../index.ts'
import { createTools } from '../tools/tools.ts'
import { createFakeLink, type FakeLink } from './fake-link.ts'

export interface StartedWorker {
  readonly kernel: TestKernel
  readonly identity: WorkerIdentity
  readonly link: FakeLink
  readonly workspace: string
  /** Resolves when the worker was refused. */
  readonly failed: Promise<BootError>
  /** Resolves when the worker was told to end. */
  readonly ended: Promise<void>
}

export interface WorkerSettings {
  readonly url: string
  readonly sessionId?: string
  readonly token?: string
  readonly stateDir?: string
  readonly link?: FakeLink
  readonly drain?: string
}

export const newSession = (): string => `sess-00000000-${randomBytes(4).toString('hex')}`

/** The plugin in a kernel without listeners, with a made-up runtime. */
export async function startWorker(t: Pick<TestContext, 'after'>, settings: WorkerSettings): Promise<StartedWorker> {
  const { url, sessionId = newSession(), token = 'token-1', stateDir, link = createFakeLink(), drain } = settings
  const identity = { runnerUrl: url, sessionId, token, renew, bind }
  function renew(token: string): void {
    identity.token = token
  }
  function bind(session: string, token: string): void {
    Object.assign(identity, { sessionId: session, token })
  }
  const failed = Promise.withResolvers<BootError>()
  const ended = Promise.withResolvers<void>()
  const workspace = join(await folder(t), 'workspace')
  const config = {
    workspace,
    ...(stateDir === undefined ? {} : { stateDir }),
    ...(drain === undefined ? {} : { drain }),
  }
  const kernel = await testKernel(
    t,
    [fake(LocalSidecars, { local: link }), fake(WorkerIdentity, identity), { name: 'worker', plugin: worker, config }],
    { listeners: [], onFailure: failed.resolve, onEnd: ended.resolve },
  )
  return { kernel, identity, link, workspace, failed: failed.promise, ended: ended.promise }
}

export async function folder(t: Pick<TestContext, 'after'>): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'agent-orc-worker-'))
  // Its worker may still be writing: hooks run in the order in which they were registered.
  t.after(() => rm(path, { recursive: true, force: true, maxRetries: 20, retryDelay: 50 }))
  return path
}

/** Resolves when the condition holds. */
export async function until(condition: () => boolean | Promise<boolean>, what: string): Promise<void> {
  const late = Date.now() + 30_000
  while (!(await condition())) {
    if (Date.now() > late) throw new Error(`never: ${what}`)
    await sleep(5)
  }
}

export interface Machine {
  /** The folder around the workspace; everything else in it is outside of the workspace. */
  readonly outside: string
  readonly workspace: string
  call(
    name: string,
    input: Record<string, unknown>,
    limits?: { timeoutMs?: number; signal?: AbortSignal },
  ): Promise<ToolResult>
}

/** The tools of a worker, without the worker. */
export async function startTools(t: TestContext): Promise<Machine> {
  const outside = await realpath(await folder(t))
  const workspace = join(outside, 'deep', 'workspace')
  const settings = { workspace, path: process.env['PATH']!, lang: 'C.UTF-8', tmpDir: '/tmp' }
  const tools = await createTools(settings, pino({ level: 'silent' }))
  return {
    outside,
    workspace,
    call: (name, input, { timeoutMs = 20_000, signal = new AbortController().signal } = {}) =>
      tools.call(name, input, { timeoutMs, signal }),
  }
}

/** The number that a process has left in a file; 0 while there is none. */
export const pidIn = (file: string): number => (existsSync(file) ? Number(readFileSync(file, 'utf8')) : 0)

export const isAlive = (pid: number): boolean => {
  try {
    // A zombie counts as ended: its new parent may reap it only later.
    return !/^\d+ \(.*\) [ZX]/.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
  } catch {
    return false
  }
}
