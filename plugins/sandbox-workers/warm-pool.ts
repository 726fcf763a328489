import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { Profile } from '#contracts/profiles'
import type { StateBundle } from '#contracts/runtime'
import { pollMs } from '#contracts/wire/worker'
import type { WorkerChannel } from '#contracts/workers'
import type { Launcher } from './launcher.ts'
import type { Reaper } from './reaper.ts'
import { isPolling, type Sandbox, stateOf } from './sandbox.ts'

/** Between launches that fail: a provider that is away is not asked in a loop. Doubled up to the second. */
const firstRetryMs = 1_000
const lastRetryMs = 60_000
/** How long a worker that polls may take to come back under its session's id, before another one is launched instead. */
const bindMs = 5_000
/** The start of a process takes a core for a while: it must not be in the way of the run that took its predecessor. */
const refillAfterMs = 500

export interface PoolSettings {
  readonly tenant: string
  readonly profile: string
  readonly size: number
}

export interface BindRequest {
  readonly tenantId: string
  readonly sessionId: string
  readonly profile: Profile
  readonly state: StateBundle | undefined
}

/** Prepared workers of one profile, each in a sandbox under a slot of its own until a session takes it. */
export interface WarmPool {
  readonly settings: PoolSettings
  /** How many wait. */
  readonly size: number
  /** The profile as it is now. Those of other sandbox settings are replaced. Undefined: there is none, and none are kept. */
  follow(profile: Profile | undefined): void
  /** Undefined: none is ready, or not for a profile like this. */
  take(request: BindRequest): Promise<Sandbox | undefined>
  /** Lets go of those that died while they waited. */
  look(): Promise<void>
}

export interface WarmPoolDeps {
  readonly launcher: Launcher
  readonly reaper: Reaper
  readonly log: FastifyBaseLogger
  /** Aborts when the runner stops. */
  readonly stopping: AbortSignal
}

export function createWarmPool(settings: PoolSettings, deps: WarmPoolDeps): WarmPool {
  const { launcher, reaper, log, stopping } = deps
  let wanted: { readonly profile: Profile; readonly key: string } | undefined
  let ready: Sandbox[] = []
  let filling = false

  const drop = (sandbox: Sandbox): void => {
    ready = ready.filter((other) => other !== sandbox)
    sandbox.channel.close()
    void reaper.destroy(sandbox)
  }
  const fill = async (): Promise<void> => {
    let retryMs = firstRetryMs
    while (wanted && ready.length < settings.size && !stopping.aborted) {
      const { profile, key } = wanted
      try {
        const sessionId = `warm-${randomUUID()}`
        const { tenant: tenantId } = settings
        const order = { tenantId, sessionId, profile, state: undefined, warm: true, signal: stopping }
        const sandbox = await launcher.launch(order)
        if (wanted?.key === key) ready.push(sandbox)
        else drop(sandbox)
        retryMs = firstRetryMs
      } catch (err) {
        if (stopping.aborted) return
        log.warn({ err, tenantId: settings.tenant, profile: profile.name }, 'a warm worker could not be launched')
        await sleep(retryMs, undefined, { signal: stopping }).catch(() => {})
        retryMs = Math.min(retryMs * 2, lastRetryMs)
      }
    }
  }
  const startFilling = (): void => {
    if (filling) return
    filling = true
    void fill().finally(() => {
      filling = false
      // The profile may have changed between its last look and here.
      if (wanted && ready.length < settings.size && !stopping.aborted) startFilling()
    })
  }
  const bind = async (sandbox: Sandbox, { sessionId, state }: BindRequest): Promise<Sandbox | undefined> => {
    let channel: WorkerChannel | undefined
    try {
      channel = await sandbox.channel.bind(sessionId)
      // At once: the worker asks for its conversation as soon as it has heard of its session.
      if (state) channel.setState(state)
      const bound = { ...sandbox, channel }
      await launcher.connected(bound, AbortSignal.any([stopping, AbortSignal.timeout(bindMs)]))
      return bound
    } catch (err) {
      channel?.close()
      drop(sandbox)
      if (isAppError(err) && err.code === 'worker_token_unavailable') throw err
      log.warn({ err, sandboxId: sandbox.sandboxId }, 'a warm worker did not take its session')
      return undefined
    }
  }
  return {
    settings,
    get size() {
      return ready.length
    },
    follow(profile) {
      const key = profile && keyOf(profile)
      if (key !== wanted?.key) for (const sandbox of ready) drop(sandbox)
      wanted = profile && key !== undefined ? { profile, key } : undefined
      startFilling()
    },
    async take(request) {
      if (keyOf(request.profile) !== wanted?.key) return undefined
      if (ready.length > 0) setTimeout(startFilling, refillAfterMs).unref()
      for (let sandbox = ready.shift(); sandbox; sandbox = ready.shift()) {
        const bound = (await isPolling(sandbox.channel)) ? await bind(sandbox, request) : void drop(sandbox)
        if (bound) return bound
      }
      return undefined
    },
    async look() {
      await Promise.all(
        ready.map(async (sandbox) => {
          if (await isPolling(sandbox.channel)) return
          const silent = Date.now() - (sandbox.channel.lastPollAt ?? sandbox.launchedAt) > 2 * pollMs
          if (silent || (await stateOf(sandbox)) === 'gone') drop(sandbox)
        }),
      )
      startFilling()
    },
  }
}

/** What a worker is prepared with; undefined: the profile has no sandbox. */
function keyOf({ workerMode, sandbox, runtime }: Profile): string | undefined {
  if (workerMode !== 'sandbox' && sandbox === undefined) return undefined
  return JSON.stringify([runtime, sandbox ?? {}])
}
