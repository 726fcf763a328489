import type { StateBundle } from '#contracts/runtime'
import type { SandboxState } from '#contracts/sandbox'
import type { RunnerSession } from '#contracts/runner'
import { type AwakeMeter, createAwakeMeter } from './awake.ts'
import { isGone } from './errors.ts'
import type { Launcher } from './launcher.ts'
import type { Reaper } from './reaper.ts'
import { isPolling, type Sandbox, stateOf } from './sandbox.ts'
import { createTurnstile } from './waiting.ts'
import type { WarmPools } from './warm-pools.ts'

/** How long the worker of a sandbox that was awake may be silent, between two polls or while its network is away, before it is given up. */
const silentMs = 10_000

export type Start = 'launched' | 'warm' | 'resumed' | 'running'
export interface Started {
  readonly sandbox: Sandbox
  readonly start: Start
  readonly startMs: number
}

/** The worker of one session: in a sandbox, in none yet, or in none any more. */
export interface SessionWorker {
  readonly session: RunnerSession
  /** The present sandbox. */
  readonly sandbox: Sandbox | undefined
  /** The last one, which may be gone. */
  readonly latest: Sandbox | undefined
  readonly phase: 'starting' | 'awake' | 'paused' | 'gone' | undefined
  readonly lastUsedAt: number
  /** How many runs, tools and exports use it at this moment. */
  readonly uses: number
  readonly awake: AwakeMeter
  /** The durable copy of the conversation. */
  readonly state: StateBundle | undefined
  /** Its sandbox is not put to sleep until the returned function is called, and for a while behind it. */
  use(): () => void
  /** The same, without counting as used. */
  hold(): () => void
  /** A sandbox whose worker polls, started if need be; concurrent callers share one start. */
  ready(): Promise<Started>
  /** Its provider said that it changed: what was seen of it before is not relied on. */
  doubt(): void
  /** Somebody has asked its provider how it is. */
  observe(of: Sandbox, state: SandboxState): void
  /** Unless it is in use. */
  pause(): Promise<void>
  /** Ends the sandbox unless it is in use; the next use starts another one, with the same conversation. */
  retire(): Promise<void>
  /** Ends the sandbox, and with it the conversation. */
  replace(state: StateBundle): Promise<void>
  /** Ends it all for this reason, a start under way included. */
  close(why: Error): Promise<void>
}

export interface SessionWorkerDeps {
  readonly launcher: Launcher
  readonly reaper: Reaper
  readonly pools: WarmPools
}

export function createSessionWorker(session: RunnerSession, deps: SessionWorkerDeps): SessionWorker {
  const { launcher, reaper, pools } = deps
  const awake = createAwakeMeter()
  const oneAtATime = createTurnstile()
  const closing = new AbortController()
  let sandbox: Sandbox | undefined
  let latest: Sandbox | undefined
  let kept: StateBundle | undefined
  let paused = false
  let doubted = false
  let starting: Promise<Started> | undefined
  let uses = 0
  let lastUsedAt = Date.now()

  const hold = (): (() => void) => {
    uses++
    return () => {
      uses--
    }
  }
  /** The sandbox is gone, or is about to be. */
  const lose = (): void => {
    if (!sandbox) return
    kept = sandbox.channel.state ?? kept
    sandbox.channel.close()
    sandbox = undefined
    paused = doubted = false
    awake.slept()
  }
  const discard = async (): Promise<void> => {
    const doomed = sandbox
    lose()
    if (doomed) await reaper.destroy(doomed)
  }
  const take = (next: Sandbox): Sandbox => {
    sandbox = latest = next
    // The channel has it from now on, in a newer version soon.
    kept = undefined
    paused = doubted = false
    awake.woke()
    return next
  }
  /** What there is becomes ready, or undefined: it is lost. */
  const wake = async (): Promise<Start | undefined> => {
    if (!sandbox) return undefined
    if (!paused && !doubted && (await isPolling(sandbox.channel))) return 'running'
    const state = paused ? 'paused' : await stateOf(sandbox)
    doubted = false
    if (state === 'gone') return void lose()
    if (state === 'paused') return resume(sandbox)
    try {
      await launcher.connected(sandbox, AbortSignal.any([closing.signal, AbortSignal.timeout(silentMs)]))
      return 'running'
    } catch {
      await discard()
      return undefined
    }
  }
  const resume = async (sleeping: Sandbox): Promise<Start | undefined> => {
    try {
      await launcher.resume(sleeping, closing.signal)
    } catch (error) {
      await discard()
      if (isGone(error)) return undefined
      throw error
    }
    paused = false
    awake.woke()
    return 'resumed'
  }
  const launch = async (): Promise<Start> => {
    const { tenantId, id: sessionId, profile } = session
    const bound = await pools.take({ tenantId, sessionId, profile, state: kept })
    if (bound) return (take(bound), 'warm')
    const signal = closing.signal
    take(await launcher.launch({ tenantId, sessionId, profile, state: kept, warm: false, signal }))
    return 'launched'
  }
  const start = async (): Promise<Started> => {
    const begun = performance.now()
    closing.signal.throwIfAborted()
    const woken = await wake()
    const how = woken ?? (await launch())
    return { sandbox: sandbox!, start: how, startMs: Math.round(performance.now() - begun) }
  }
  return {
    session,
    awake,
    get sandbox() {
      return sandbox
    },
    get latest() {
      return latest
    },
    get phase() {
      if (sandbox) return paused ? 'paused' : 'awake'
      return starting ? 'starting' : latest ? 'gone' : undefined
    },
    get lastUsedAt() {
      return lastUsedAt
    },
    get uses() {
      return uses
    },
    get state() {
      return sandbox?.channel.state ?? kept
    },
    use() {
      const leave = hold()
      lastUsedAt = Date.now()
      return () => {
        leave()
        lastUsedAt = Date.now()
      }
    },
    hold,
    ready: () =>
      (starting ??= oneAtATime(start).finally(() => {
        starting = undefined
      })),
    doubt() {
      doubted = true
    },
    pause: () =>
      oneAtATime(async () => {
        if (!sandbox || paused || uses > 0) return
        try {
          await sandbox.substrate.provider.pause(sandbox.sandboxId)
          paused = true
          awake.slept()
        } catch (error) {
          if (!isGone(error)) throw error
          lose()
        }
      }),
    retire: () => oneAtATime(async () => (uses > 0 ? undefined : discard())),
    observe(of, state) {
      if (of !== sandbox || uses > 0 || starting) return
      if (state === 'gone') lose()
      else if (state === 'paused' && !paused) {
        paused = true
        awake.slept()
      }
    },
    replace: (state) =>
      oneAtATime(async () => {
        await discard()
        kept = state
        latest = undefined
      }),
    async close(why) {
      closing.abort(why)
      await oneAtATime(discard)
    },
  }
}
