import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { BootError } from '#kernel'
import { LocalSidecars } from '#contracts/sidecar'
import { WorkerIdentity, WorkerTools } from '#contracts/workers'
import { fake, testKernel, type TestKernel } from '#testing'
import workerClient from '../index.ts'
import { createFakeLink, type FakeLink } from './fake-link.ts'

export interface StartedWorker {
  readonly kernel: TestKernel
  readonly identity: WorkerIdentity
  readonly link: FakeLink
  /** Resolves when the worker was refused. */
  readonly failed: Promise<BootError>
  /** Resolves when the worker was told to end. */
  readonly ended: Promise<void>
}

export interface WorkerSettings {
  readonly url: string
  readonly sessionId?: string
  readonly stateDir?: string
  readonly link?: FakeLink
  readonly tools?: WorkerTools
  readonly drain?: string
}

export const newSession = (): string => `sess-00000000-${randomBytes(4).toString('hex')}`

/** The plugin in a kernel without listeners, with a made-up runtime. */
export async function startWorker(t: Pick<TestContext, 'after'>, settings: WorkerSettings): Promise<StartedWorker> {
  const { url, sessionId = newSession(), stateDir, link = createFakeLink(), tools, drain } = settings
  const identity = { runnerUrl: url, sessionId, token: 'token-1', renew, bind }
  function renew(token: string): void {
    identity.token = token
  }
  function bind(session: string, token: string): void {
    Object.assign(identity, { sessionId: session, token })
  }
  const failed = Promise.withResolvers<BootError>()
  const ended = Promise.withResolvers<void>()
  const config = { ...(stateDir === undefined ? {} : { stateDir }), ...(drain === undefined ? {} : { drain }) }
  const kernel = await testKernel(
    t,
    [
      fake(LocalSidecars, { local: link }),
      fake(WorkerIdentity, identity),
      ...(tools ? [fake(WorkerTools, tools)] : []),
      { name: 'worker-client', plugin: workerClient, config },
    ],
    { listeners: [], onFailure: failed.resolve, onEnd: ended.resolve },
  )
  return { kernel, identity, link, failed: failed.promise, ended: ended.promise }
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
