import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { definePlugin } from '#kernel'
import { type SandboxProvider, SandboxProviders } from '#contracts/sandbox'
import { WorkerHub, WorkerTokens } from '#contracts/workers'
import { fake, startScriptedWorker, testKernel, type WorkerScript } from '#testing'
import hubPlugin from '../index.ts'

export interface HubOptions {
  readonly tokens: WorkerTokens
  readonly config?: Readonly<Record<string, unknown>>
  readonly providers?: Readonly<Record<string, SandboxProvider>>
}

export const listeners = ['runner', 'workers'] as const

/** A hub behind real sockets. */
export async function startHub(t: TestContext, { tokens, config = {}, providers = one }: HubOptions) {
  let hub: WorkerHub | undefined
  const probe = definePlugin({
    name: 'probe',
    requires: { hub: WorkerHub },
    setup: async ({ deps }) => ((hub = deps.hub), {}),
  })
  const kernel = await testKernel(
    t,
    [
      fake(WorkerTokens, tokens),
      fake(SandboxProviders, { ...providers }),
      { name: 'worker-hub', plugin: hubPlugin, config },
      probe,
    ],
    { listen: true, listeners },
  )
  const open = async (sessionId = newSession(), tenantId = 'acme') => {
    const channel = await hub!.open(tenantId, sessionId)
    const worker = (script?: WorkerScript) =>
      startScriptedWorker(t, { url: kernel.urls['workers']!, sessionId, token: channel.token }, script)
    return { channel, worker }
  }
  return { kernel, hub: hub!, open, urls: kernel.urls }
}

const one: Readonly<Record<string, SandboxProvider>> = { process: {} as SandboxProvider }

export const newSession = (): string => `sess-00000000-${randomBytes(4).toString('hex')}`

/** Resolves when the condition holds. */
export async function until(condition: () => boolean, what: string): Promise<void> {
  const late = Date.now() + 30_000
  while (!condition()) {
    if (Date.now() > late) throw new Error(`never: ${what}`)
    await sleep(5)
  }
}
