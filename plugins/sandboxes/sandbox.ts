import type { LaunchOrder, SandboxState } from '#contracts/sandbox'
import type { WorkerChannel } from './hub/worker.ts'
import type { Substrate } from './substrates.ts'
import { unlessAborted } from './waiting.ts'

/** A sandbox that was launched, and the channel of the worker in it. */
export interface Sandbox {
  readonly substrate: Substrate
  readonly sandboxId: string
  readonly order: LaunchOrder
  /** The runner's address as the worker sees it. */
  readonly runnerUrl: string
  readonly channel: WorkerChannel
  readonly launchedAt: number
  /** It was prepared before its session was known. */
  readonly warm: boolean
}

/** How long a substrate may take to report a state. A conductor waits 2 s for all leases of a runner. */
const statusMs = 1_500

/** Asks the substrate for the state of a sandbox. Undefined: it could not be reached. */
export async function stateOf(
  { substrate, sandboxId }: Pick<Sandbox, 'substrate' | 'sandboxId'>,
  signal?: AbortSignal,
): Promise<SandboxState | undefined> {
  const limit = AbortSignal.timeout(statusMs)
  const bound = signal ? AbortSignal.any([signal, limit]) : limit
  try {
    return await unlessAborted(substrate.provider.status(sandboxId, bound), bound)
  } catch {
    return undefined
  }
}

/** True when its worker has a poll open at this moment. */
export async function isPolling(channel: WorkerChannel): Promise<boolean> {
  const moment = new AbortController()
  const connected = channel.connected(moment.signal).then(
    () => true,
    () => false,
  )
  setImmediate(() => moment.abort())
  return connected
}

/** Counts the current users of a sandbox, and since when there are none. */
interface Uses {
  readonly count: number
  readonly lastAt: number
  /** Until the returned function is called, and counted as used from then on. */
  use(): () => void
  /** The same, without counting as used. */
  hold(): () => void
}

export function createUses(now: () => number = Date.now): Uses {
  let count = 0
  let lastAt = now()
  const hold = (): (() => void) => {
    count++
    return () => {
      count--
    }
  }
  return {
    get count() {
      return count
    },
    get lastAt() {
      return lastAt
    },
    hold,
    use() {
      const leave = hold()
      lastAt = now()
      return () => {
        leave()
        lastAt = now()
      }
    },
  }
}

/** Measures how long a sandbox was awake outside of runs, which account for their own time. */
interface AwakeMeter {
  woke(): void
  slept(): void
  /** Awake and not accounted for, in ms. */
  readonly ms: number
  /** Called when the time until now was accounted for: starts from 0 again. */
  settle(): void
}

export function createAwakeMeter(now: () => number = Date.now): AwakeMeter {
  let since: number | undefined
  let before = 0
  const total = (): number => before + (since === undefined ? 0 : now() - since)
  return {
    woke() {
      since ??= now()
    },
    slept() {
      before = total()
      since = undefined
    },
    get ms() {
      return total()
    },
    settle() {
      before = 0
      if (since !== undefined) since = now()
    },
  }
}
