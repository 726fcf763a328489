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

/** How long a substrate may take to say how a sandbox is. A conductor waits 2 s for all leases of a runner. */
const statusMs = 1_500

/** Asks the substrate how a sandbox is. Undefined: it could not be asked. */
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
