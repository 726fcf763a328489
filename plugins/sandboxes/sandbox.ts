import type { LaunchOrder, SandboxState } from '#contracts/sandbox'
import type { WorkerChannel } from './hub/worker.ts'
import type { Substrate } from './substrates.ts'
import { unlessAborted } from './waiting.ts'

/** A launched sandbox, and the channel of its worker. */
export interface Sandbox {
  readonly substrate: Substrate
  readonly sandboxId: string
  readonly order: LaunchOrder
  /** The runner's address as the worker sees it. */
  readonly runnerUrl: string
  readonly channel: WorkerChannel
  readonly launchedAt: number
  /** True when the sandbox was prepared before its session was known. */
  readonly warm: boolean
}

/** How long a substrate may take to report a state. It must be below the 2 s that a conductor waits for all leases of a runner. */
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

/** Counts the users of a sandbox, and knows when it was last used. */
interface Uses {
  readonly count: number
  readonly lastAt: number
  /** Marks the sandbox as in use until the returned function is called. The idle time starts then. */
  use(): () => void
  /** As `use`, but does not restart the idle time. */
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
  /** The awake time that was not accounted for yet, in ms. */
  readonly ms: number
  /** Called when the time until now was accounted for. The meter restarts at 0. */
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
