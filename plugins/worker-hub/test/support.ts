import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { definePlugin } from '#kernel'
import { type SandboxProvider, SandboxProviders } from '#contracts/sandbox'
import { workerProtocolHeader } from '#contracts/wire/sidecar'
import { workerPaths, workerProtocol } from '#contracts/wire/worker'
import { type WorkerChannel, WorkerHub, WorkerTokens } from '#contracts/workers'
import { type EnvelopeFields, fake, startScriptedWorker, testEnvelope, testKernel, type WorkerScript } from '#testing'
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

/** Polls once, as the worker of a channel. */
export const pollOf =
  (url: string, { sessionId, token }: { readonly sessionId: string; readonly token: string }) =>
  (query: string): Promise<Response> =>
    fetch(`${url}${workerPaths(sessionId).poll}?${query}`, {
      headers: { authorization: `Bearer ${token}`, [workerProtocolHeader]: workerProtocol },
    })

/** Begins a run in the channel's session, and yields what comes. */
export function begin(
  channel: WorkerChannel,
  fields: EnvelopeFields = {},
  signal = new AbortController().signal,
): AsyncIterator<Buffer> {
  const run = channel.run(testEnvelope({ ...fields, sessionId: channel.sessionId }), signal, 'http://runner')
  return run[Symbol.asyncIterator]()
}
