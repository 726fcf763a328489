import { mkdtemp, realpath, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { definePlugin } from '#kernel'
import type { ToolResult } from '#contracts/tools'
import { WorkerTools } from '#contracts/workers'
import { testKernel, type TestKernel } from '#testing'
import workerTools from '../index.ts'

export interface Machine {
  /** The folder around the workspace: what is in it besides is outside. */
  readonly outside: string
  readonly workspace: string
  readonly kernel: TestKernel
  call(
    name: string,
    input: Record<string, unknown>,
    limits?: { timeoutMs?: number; signal?: AbortSignal },
  ): Promise<ToolResult>
}

export async function startTools(t: TestContext): Promise<Machine> {
  const outside = await realpath(await mkdtemp(join(tmpdir(), 'agent-orc-tools-')))
  const workspace = join(outside, 'deep', 'workspace')
  let tools: WorkerTools | undefined
  const probe = definePlugin({
    name: 'probe',
    requires: { tools: WorkerTools },
    setup: async ({ deps }) => ((tools = deps.tools), {}),
  })
  const config = { workspace, path: process.env['PATH']! }
  const kernel = await testKernel(t, [{ name: 'worker-tools', plugin: workerTools, config }, probe], { listeners: [] })
  t.after(() => rm(outside, { recursive: true, force: true, maxRetries: 20, retryDelay: 50 }))
  return {
    outside,
    workspace,
    kernel,
    call: (name, input, { timeoutMs = 20_000, signal = new AbortController().signal } = {}) =>
      tools!.call(name, input, { timeoutMs, signal }),
  }
}

/** Resolves when the condition holds. */
export async function until(condition: () => boolean | Promise<boolean>, what: string): Promise<void> {
  const late = Date.now() + 20_000
  while (!(await condition())) {
    if (Date.now() > late) throw new Error(`never: ${what}`)
    await sleep(5)
  }
}
