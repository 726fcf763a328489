import { randomBytes } from 'node:crypto'
import type { TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { definePlugin, type Plugin } from '#kernel'
import { createClientAddress, WrongKeys } from '#kit'
import { workerProtocolHeader } from '#contracts/wire/sidecar'
import { workerPaths, workerProtocol } from '#contracts/wire/worker'
import { type SessionMemory, WorkerHub, workerTokenErrors } from '#contracts/workers'
import { type EnvelopeFields, startScriptedWorker, testEnvelope, testKernel, type WorkerScript } from '#testing'
import type { FilesOf } from '../file.routes.ts'
import { mountCallbacks } from '../index.ts'
import { ModelCalls, type ModelCallsOptions } from '../egress/calls.ts'
import { modelServers } from '../egress/model-servers.ts'
import { createHub, type Hub } from '../hub/hub.ts'
import type { WorkerClaims, WorkerTokens } from '../hub/tokens.ts'
import type { WorkerChannel } from '../hub/worker.ts'

export interface HubOptions {
  readonly tokens?: WorkerTokens
  readonly lostMs?: number
  readonly models?: Parameters<typeof modelServers>[0]
  readonly served?: boolean
  readonly memory?: SessionMemory
  readonly filesOf?: FilesOf
  readonly wrongKeys?: WrongKeys
}

export const listeners = ['runner', 'workers'] as const

/** The hub without sandboxes: each test connects the workers itself. */
export function hubPlugin(options: HubOptions = {}): { readonly hub: Hub; readonly plugin: Plugin } {
  const {
    tokens = plainTokens,
    lostMs = 15_000,
    models = {},
    served = true,
    memory,
    filesOf = () => undefined,
    wrongKeys = new WrongKeys(300),
  } = options
  const hub = createHub(tokens, lostMs, memory)
  const plugin = definePlugin({
    name: 'hub',
    provides: { hub: WorkerHub },
    async setup(ctx) {
      ctx.onStop(async () => hub.close())
      mountCallbacks(ctx, {
        hub,
        served,
        clientOf: createClientAddress(),
        wrongKeys,
        models: modelServers(models),
        filesOf,
      })
      return { hub }
    },
  })
  return { hub, plugin }
}

/** A hub behind real sockets. */
export async function startHub(t: TestContext, options: HubOptions = {}) {
  const { hub, plugin } = hubPlugin(options)
  const kernel = await testKernel(t, [plugin], { listen: true, listeners })
  const open = async (sessionId = newSession(), tenantId = 'acme') => {
    const channel = await hub.open(tenantId, sessionId)
    const worker = (script?: WorkerScript) =>
      startScriptedWorker(t, { url: kernel.urls['workers']!, sessionId, token: channel.token }, script)
    return { channel, worker }
  }
  return { kernel, hub, open, urls: kernel.urls }
}

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

/** The model calls of a run, which nobody counts unless the options say so. */
export const callsOf = (options: Partial<ModelCallsOptions> = {}): ModelCalls =>
  new ModelCalls({ model: 'openai/m', counts: { measured() {}, refused() {} }, onUsage() {}, ...options })
export const wayOf = (runnerUrl = 'http://runner', calls = callsOf()) => ({ runnerUrl, calls })

/** Begins a run in the channel's session, and yields what comes. */
export function begin(
  channel: WorkerChannel,
  fields: EnvelopeFields = {},
  signal = new AbortController().signal,
  calls = callsOf({ model: fields.profile?.model ?? 'openai/m' }),
): AsyncIterator<Buffer> {
  const run = channel.run(testEnvelope({ ...fields, sessionId: channel.sessionId }), signal, wayOf(undefined, calls))
  return run[Symbol.asyncIterator]()
}

const dayMs = 24 * 60 * 60 * 1_000

/** Tokens that can be read and written by tests; the real ones have tests of their own. */
export const tokenOf = (claims: WorkerClaims, expiresAt = Date.now() + dayMs): string =>
  Buffer.from(JSON.stringify({ ...claims, expiresAt })).toString('base64url')

export const plainTokens: WorkerTokens = {
  async mint(claims) {
    const expiresAt = Date.now() + dayMs
    return { token: tokenOf(claims, expiresAt), expiresAt }
  },
  async verify(authorization) {
    const text = /^Bearer (\S+)$/.exec(authorization ?? '')?.[1]
    if (text === undefined) throw workerTokenErrors.missing()
    try {
      return JSON.parse(Buffer.from(text, 'base64url').toString()) as Awaited<ReturnType<WorkerTokens['verify']>>
    } catch {
      throw workerTokenErrors.malformed()
    }
  },
}
