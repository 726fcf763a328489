import { randomUUID } from 'node:crypto'
import { Type } from '@sinclair/typebox'
import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { Profile } from '#contracts/profiles'
import type { StateBundle } from '#contracts/runtime'
import { pollMs } from '#contracts/wire/worker'
import { retry } from '#kit'
import type { WorkerChannel } from './hub/worker.ts'
import type { Launcher } from './launcher.ts'
import type { Reaper } from './reaper.ts'
import { isPolling, type Sandbox, stateOf } from './sandbox.ts'

/** The waits between failed launches, so that an unreachable provider is not called in a loop. */
const waits = { firstMs: 1_000, longestMs: 60_000 }
/** How long a polling worker may take to come back under its session's id. After that another sandbox is launched instead. */
const bindMs = 5_000
/** The start of a worker uses a core for a while: it must not slow down the run that has just taken the previous worker. */
const refillAfterMs = 500

interface PoolSettings {
  readonly tenant: string
  readonly profile: string
  readonly size: number
}

interface BindRequest {
  readonly tenantId: string
  readonly sessionId: string
  readonly profile: Profile
  readonly state: StateBundle | undefined
}

const entry = '[^/=,\\s]+/[A-Za-z0-9][A-Za-z0-9_.-]{0,63}=[1-9]\\d{0,2}'

/** The setting `acme/coder=2, acme/writer=1` as a list; empty when absent. */
export const WarmPoolList = Type.Transform(
  Type.String({
    default: '',
    pattern: `^\\s*(${entry}\\s*(,\\s*${entry}\\s*)*)?$`,
    expects: 'pairs such as acme/coder=2, a tenant and a profile each, with commas between them',
    description: 'Prepared workers by tenant/profile, e.g. acme/coder=2. Each holds memory while it waits.',
  }),
)
  .Decode((text): PoolSettings[] =>
    text
      .split(',')
      .map((part) => /^(.+)\/(.+)=(\d+)$/.exec(part.trim()))
      .filter((match) => match !== null)
      .map(([, tenant, profile, size]) => ({ tenant: tenant!, profile: profile!, size: Number(size) })),
  )
  .Encode((pools) => pools.map(({ tenant, profile, size }) => `${tenant}/${profile}=${size}`).join(','))

/** The warm pools of a runner. */
export interface WarmPools {
  /** Gives a prepared worker to a session. Undefined when none is ready. */
  take(request: BindRequest): Promise<Sandbox | undefined>
  follow(tenantId: string, name: string, profile: Profile | undefined): void
  /** Allows launches, because workers can reach the runner now. */
  open(): void
  look(): Promise<void>
  /** The number of workers that are ready. */
  readonly waiting: number
}

interface WarmPoolDeps {
  readonly launcher: Launcher
  readonly reaper: Reaper
  readonly log: FastifyBaseLogger
  /** Aborts when the runner stops. */
  readonly stopping: AbortSignal
}

export function createWarmPools(settings: readonly PoolSettings[], deps: WarmPoolDeps): WarmPools {
  const nameOf = (tenantId: string, name: string): string => `${tenantId}/${name}`
  const pools = new Map(settings.map((one) => [nameOf(one.tenant, one.profile), new WarmPool(one, deps)] as const))
  /** Profiles that were broadcast before workers could reach the runner. */
  const early = new Map<string, Profile | undefined>()
  let isOpen = false
  return {
    take: async (request) => pools.get(nameOf(request.tenantId, request.profile.name))?.take(request),
    follow(tenantId, name, profile) {
      const key = nameOf(tenantId, name)
      if (isOpen) pools.get(key)?.follow(profile)
      else if (pools.has(key)) early.set(key, profile)
    },
    open() {
      isOpen = true
      for (const [key, profile] of early) pools.get(key)!.follow(profile)
      early.clear()
    },
    async look() {
      if (isOpen) await Promise.all([...pools.values()].map((pool) => pool.look()))
    },
    get waiting() {
      return [...pools.values()].reduce((sum, pool) => sum + pool.size, 0)
    },
  }
}

/** Prepared workers of one profile. Each has its own sandbox and a slot instead of a session until a session takes it. */
class WarmPool {
  readonly #settings: PoolSettings
  readonly #deps: WarmPoolDeps
  /** The present profile, with the key of its sandbox settings. */
  #wanted: { readonly profile: Profile; readonly key: string } | undefined
  #ready: Sandbox[] = []
  #filling = false

  constructor(settings: PoolSettings, deps: WarmPoolDeps) {
    this.#settings = settings
    this.#deps = deps
  }

  /** The number of workers that are ready. */
  get size(): number {
    return this.#ready.length
  }

  /**
   * Called when the profile has changed. Workers with other sandbox settings are replaced. Undefined means that the profile is gone, so no workers
   * are kept.
   */
  follow(profile: Profile | undefined): void {
    const key = profile && keyOf(profile)
    if (key !== this.#wanted?.key) for (const sandbox of this.#ready) this.#drop(sandbox)
    this.#wanted = profile && key !== undefined ? { profile, key } : undefined
    this.#fill()
  }

  /** Undefined when no worker is ready, or when the ready ones have other settings than the request. */
  async take(request: BindRequest): Promise<Sandbox | undefined> {
    if (keyOf(request.profile) !== this.#wanted?.key) return undefined
    if (this.#ready.length > 0) setTimeout(() => this.#fill(), refillAfterMs).unref()
    for (let sandbox = this.#ready.shift(); sandbox; sandbox = this.#ready.shift()) {
      const bound = (await isPolling(sandbox.channel)) ? await this.#bind(sandbox, request) : void this.#drop(sandbox)
      if (bound) return bound
    }
    return undefined
  }

  /** Replaces workers that died while they waited. */
  async look(): Promise<void> {
    await Promise.all(
      this.#ready.map(async (sandbox) => {
        if (await isPolling(sandbox.channel)) return
        const silent = Date.now() - (sandbox.channel.lastPollAt ?? sandbox.launchedAt) > 2 * pollMs
        if (silent || (await stateOf(sandbox)) === 'gone') this.#drop(sandbox)
      }),
    )
    this.#fill()
  }

  #drop(sandbox: Sandbox): void {
    this.#ready = this.#ready.filter((other) => other !== sandbox)
    sandbox.channel.close()
    void this.#deps.reaper.destroy(sandbox)
  }

  #isShort(): boolean {
    return this.#wanted !== undefined && this.size < this.#settings.size && !this.#deps.stopping.aborted
  }

  #fill(): void {
    if (this.#filling) return
    this.#filling = true
    void this.#launchAll().finally(() => {
      this.#filling = false
      // The profile may have changed after the loop's last check.
      if (this.#isShort()) this.#fill()
    })
  }

  async #launchAll(): Promise<void> {
    const { log, stopping } = this.#deps
    const { tenant: tenantId, profile } = this.#settings
    const mayPass = (err: unknown): boolean => {
      log.warn({ err, tenantId, profile }, 'a warm worker could not be launched')
      return true
    }
    // `retry` rejects only when the runner stops.
    while (this.#isShort()) await retry(() => this.#launch(), { ...waits, signal: stopping, mayPass }).catch(() => {})
  }

  async #launch(): Promise<void> {
    const { launcher, stopping } = this.#deps
    // The profile may have changed during the wait after a failed launch.
    if (!this.#isShort()) return
    const { profile, key } = this.#wanted!
    const sessionId = `warm-${randomUUID()}`
    const slot = { tenantId: this.#settings.tenant, sessionId, profile, state: undefined, warm: true, signal: stopping }
    const sandbox = await launcher.launch(slot)
    if (this.#wanted?.key === key) this.#ready.push(sandbox)
    else this.#drop(sandbox)
  }

  async #bind(sandbox: Sandbox, { sessionId, state }: BindRequest): Promise<Sandbox | undefined> {
    const { launcher, log, stopping } = this.#deps
    let channel: WorkerChannel | undefined
    try {
      channel = await sandbox.channel.bind(sessionId)
      // The state is set at once, because the worker asks for it as soon as it learns its session id.
      if (state) channel.setState(state)
      const bound = { ...sandbox, channel }
      await launcher.connected(bound, AbortSignal.any([stopping, AbortSignal.timeout(bindMs)]))
      return bound
    } catch (err) {
      channel?.close()
      this.#drop(sandbox)
      if (isAppError(err) && err.code === 'worker_token_unavailable') throw err
      log.warn({ err, sandboxId: sandbox.sandboxId }, 'a warm worker did not take its session')
      return undefined
    }
  }
}

/** Workers of profiles with the same key are alike. Undefined: the profile has no sandbox. */
function keyOf({ workerMode, sandbox, runtime }: Profile): string | undefined {
  if (workerMode !== 'sandbox' && sandbox === undefined) return undefined
  return JSON.stringify([runtime, sandbox ?? {}])
}
