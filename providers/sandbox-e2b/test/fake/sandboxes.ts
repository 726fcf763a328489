import type { ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import type { Static } from '@sinclair/typebox'
import { createStandInMachine, type StandInMachine } from '#testing'
import type { NewSandbox, StartRequest } from './documented.ts'

export interface FakeProcess {
  readonly child: ChildProcess
  /** What it was asked for with. */
  readonly config: Static<typeof StartRequest>['process']
  readonly tag: string | undefined
}

export interface FakeSandbox {
  readonly sandboxID: string
  readonly templateID: string
  readonly metadata: Readonly<Record<string, string>>
  readonly accessToken: string | undefined
  readonly autoPause: boolean
  readonly machine: StandInMachine
  /** What its agent started, while it runs, by pid. */
  readonly processes: Map<number, FakeProcess>
  readonly startedAt: number
  state: 'running' | 'paused'
  endAt: number
}

/** Sandboxes of a team, with their times. */
export interface Sandboxes {
  readonly all: ReadonlyMap<string, FakeSandbox>
  create(wanted: Static<typeof NewSandbox>): Promise<FakeSandbox>
  pause(sandbox: FakeSandbox, memory: boolean): Promise<void>
  resume(sandbox: FakeSandbox): Promise<void>
  endIn(sandbox: FakeSandbox, seconds: number): void
  kill(sandbox: FakeSandbox): Promise<void>
  close(): Promise<void>
}

export function createSandboxes(): Sandboxes {
  const all = new Map<string, FakeSandbox>()
  const timers = new Map<string, NodeJS.Timeout>()
  const sandboxes: Sandboxes = {
    all,
    async create({ templateID, metadata = {}, secure = false, autoPause = false, timeout = 15 }) {
      const sandbox: FakeSandbox = {
        sandboxID: `i${randomBytes(10).toString('hex')}`,
        templateID,
        metadata,
        accessToken: secure ? randomBytes(16).toString('hex') : undefined,
        autoPause,
        machine: await createStandInMachine(['/home/user']),
        processes: new Map(),
        startedAt: Date.now(),
        state: 'running',
        endAt: 0,
      }
      all.set(sandbox.sandboxID, sandbox)
      sandboxes.endIn(sandbox, timeout)
      return sandbox
    },
    async pause(sandbox, memory) {
      clearTimeout(timers.get(sandbox.sandboxID))
      sandbox.state = 'paused'
      await (memory ? sandbox.machine.freeze() : sandbox.machine.halt())
    },
    async resume(sandbox) {
      await sandbox.machine.thaw()
      sandbox.state = 'running'
    },
    endIn(sandbox, seconds) {
      clearTimeout(timers.get(sandbox.sandboxID))
      sandbox.endAt = Date.now() + seconds * 1_000
      const end = (): Promise<void> => (sandbox.autoPause ? sandboxes.pause(sandbox, true) : sandboxes.kill(sandbox))
      timers.set(sandbox.sandboxID, setTimeout(() => void end(), seconds * 1_000).unref())
    },
    async kill(sandbox) {
      clearTimeout(timers.get(sandbox.sandboxID))
      all.delete(sandbox.sandboxID)
      await sandbox.machine.destroy()
    },
    async close() {
      await Promise.all([...all.values()].map((sandbox) => sandboxes.kill(sandbox)))
    },
  }
  return sandboxes
}
