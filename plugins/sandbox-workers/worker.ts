import { setImmediate as turn } from 'node:timers/promises'
import type { StateBundle } from '#contracts/runtime'
import type { SandboxState } from '#contracts/sandbox'
import type { RunnerSession } from '#contracts/runner'
import { type AwakeMeter, createAwakeMeter } from './awake.ts'
import { asStartFailure, isGone, isStartFailure } from './errors.ts'
import type { Launcher } from './launcher.ts'
import type { Reaper } from './reaper.ts'
import { isPolling, type Sandbox, stateOf } from './sandbox.ts'
import { createUses, type Uses } from './uses.ts'
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
  /** Runs, tools and exports. While there is one the sandbox is not put to sleep. */
  readonly uses: Uses
  readonly awake: AwakeMeter
  /** The durable copy of the conversation. */
  readonly state: StateBundle | undefined
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
  const uses = createUses()
  const oneAtATime = createTurnstile()
  const closing = new AbortController()
  let sandbox: Sandbox | undefined
  let latest: Sandbox | undefined
  let kept: StateBundle | undefined
  let paused = false
  let doubted = false
  let starting: Promise<Started> | undefined
  /** Gone by itself. What its substrate keeps of it may be of use to the next one, and goes after it. */
  let remains: Sandbox | undefined

  /** There is no sandbox any more. */
  const lose = (): void => {
    if (!sandbox) return
    kept = sandbox.channel.state ?? kept
    sandbox.channel.close()
    remains = sandbox
    sandbox = undefined
    paused = doubted = false
    awake.slept()
  }
  const discard = async (): Promise<void> => {
    lose()
    await clear()
  }
  const clear = async (): Promise<void> => {
    const doomed = remains
    remains = undefined
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
  /** A poll of before says nothing any more: its worker may be started anew, or its connection be gone unnoticed. */
  const renewPoll = async ({ channel }: Sandbox): Promise<void> => {
    channel.endPoll()
    await turn()
  }
  /** What there is becomes ready, or undefined: it is lost. */
  const wake = async (): Promise<Start | undefined> => {
    if (!sandbox) return undefined
    if (!paused && !doubted && (await isPolling(sandbox.channel))) return 'running'
    const state = paused ? 'paused' : await stateOf(sandbox)
    doubted = false
    if (state === 'gone') return void lose()
    if (state === 'paused') return resume(sandbox)
    await renewPoll(sandbox)
    try {
      await launcher.connected(sandbox, AbortSignal.any([closing.signal, AbortSignal.timeout(silentMs)]))
      return 'running'
    } catch {
      await discard()
      return undefined
    }
  }
  const resume = async (sleeping: Sandbox): Promise<Start | undefined> => {
    await renewPoll(sleeping)
    try {
      await launcher.resume(sleeping, closing.signal)
    } catch (error) {
      if (isGone(error)) return void lose()
      // One that could not even be asked sleeps on.
      if (isStartFailure(error)) await discard()
      throw asStartFailure(error)
    }
    paused = false
    awake.woke()
    return 'resumed'
  }
  const launch = async (): Promise<Start> => {
    const { tenantId, id: sessionId, profile } = session
    const bound = await pools.take({ tenantId, sessionId, profile, state: kept })
    const signal = closing.signal
    const request = { tenantId, sessionId, profile, state: kept, warm: false, signal }
    take(bound ?? (await launcher.launch(request)))
    void clear()
    return bound ? 'warm' : 'launched'
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
    uses,
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
    get state() {
      return sandbox?.channel.state ?? kept
    },
    ready: () =>
      (starting ??= oneAtATime(start).finally(() => {
        starting = undefined
      })),
    doubt() {
      doubted = true
    },
    pause: () =>
      oneAtATime(async () => {
        if (!sandbox || paused || uses.count > 0) return
        try {
          await sandbox.substrate.provider.pause(sandbox.sandboxId)
          paused = true
          awake.slept()
        } catch (error) {
          if (!isGone(error)) throw error
          lose()
        }
      }),
    retire: () => oneAtATime(async () => (uses.count > 0 ? undefined : discard())),
    observe(of, state) {
      if (of !== sandbox || uses.count > 0 || starting) return
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
