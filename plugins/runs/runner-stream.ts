import { setTimeout as sleep } from 'node:timers/promises'
import { type AppError, isAppError } from '#kernel'
import { hashOfSession } from '#contracts/ids'
import type { McpServers } from '#contracts/mcp-servers'
import type { RunStore } from '#contracts/run-store'
import type { ExecuteRun, RunnerLink } from '#contracts/runner'
import { hydrationFailed } from './errors.ts'
import type { ExecutionOrder } from './execution.ts'

/** The streams of one run from its runners, one for each attempt. */
export interface RunnerStreams {
  /** The runner that took the run last, as soon as one has. */
  readonly runner: RunnerLink | undefined
  /** Rejects with an AppError as long as no runner has taken the attempt. */
  open(body: ExecuteRun): AsyncGenerator<Buffer>
}

/** The runner certainly did nothing: another one may be asked. */
const tookNothing = (error: AppError): boolean => error.status === 503 && error.retryable

/** The runner's claim on a session may outlive ours by the time an aborted stream takes to reach it. */
const busyRetryMs = 2_000

export interface RunnerStreamDeps {
  readonly store: RunStore
  readonly mcpServers: McpServers | undefined
}

export function createRunnerStreams(
  { store, mcpServers }: RunnerStreamDeps,
  order: ExecutionOrder,
  signal: AbortSignal,
): RunnerStreams {
  const { claim, session } = order
  const { tenantId, sessionId } = claim
  let runner: RunnerLink | undefined

  /** Any other runner than this one has an old copy of the conversation, or none. */
  const newestAt = session.runner ?? hashOfSession(sessionId)
  const hydrate = async (link: RunnerLink, replace: boolean): Promise<void> => {
    try {
      const bundle = session.stateRev > 0 ? await store.loadState(tenantId, sessionId) : undefined
      await link.hydrate(tenantId, sessionId, session.profile, bundle, replace)
    } catch (cause) {
      if (isAppError(cause) && cause.status < 500) throw cause
      throw hydrationFailed({ cause, retryable: isAppError(cause) && tookNothing(cause) })
    }
  }
  /** Looked up for each attempt: what a server is sent may have changed, and is stored nowhere with the run. */
  const withServers = async (body: ExecuteRun): Promise<ExecuteRun> => {
    if (!mcpServers || session.profile.mcpServers.length === 0) return body
    return { ...body, mcpServers: [...(await mcpServers.resolve(tenantId, session.profile.mcpServers))] }
  }
  /** The runner's stream; tried again, on another runner if need be, only as long as nothing of it was seen. */
  async function* open(run: ExecuteRun): AsyncGenerator<Buffer> {
    const body = await withServers(run)
    let taken = false
    const tried = new Set<string>()
    const busyUntil = Date.now() + busyRetryMs
    let link = order.route(tried)
    // The session is new, unless a former attempt has left something of it.
    const fresh = order.created && (body.attempt ?? 1) === 1
    let hydrated = fresh
    for (;;) {
      try {
        if (!hydrated && link.hash !== newestAt) {
          await hydrate(link, true)
          hydrated = true
        }
        for await (const bytes of link.execute(tenantId, body, signal)) {
          runner = link
          taken = true
          yield bytes
        }
        return
      } catch (error) {
        if (taken || signal.aborted || !isAppError(error)) throw error
        if (error.code === 'unknown_session' && !hydrated) {
          await hydrate(link, false)
          hydrated = true
        } else if (error.code === 'session_busy' && Date.now() < busyUntil) {
          await sleep(25, undefined, { signal: signal })
        } else if (tookNothing(error)) {
          link = another(tried.add(link.hash), error)
          hydrated = fresh
        } else throw error
      }
    }
  }
  /** What the first runner said tells more than that there is no second one. */
  const another = (tried: ReadonlySet<string>, error: AppError): RunnerLink => {
    try {
      return order.route(tried)
    } catch {
      throw error
    }
  }
  return {
    get runner() {
      return runner
    },
    open,
  }
}
