import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { FleetMember, RunnerInfo, RunnerLink } from '#contracts/runner'

/** One lost probe is a hiccup; two in a row are an absence. */
const failuresUntilAway = 2
const probeTimeoutMs = 2_000
/** A runner that was never reached is asked this soon again: conductor and runners usually start together. */
const firstRetryMs = 100

export interface Member {
  readonly link: RunnerLink
  readonly running: number
  readonly live: boolean
  supports(runtime: string): boolean
  describe(): FleetMember
  /** Called when the runner is live with an empty memory. */
  onLive(listener: () => void): () => void
  /** Asks the runner now, then again and again until stopped. */
  start(): Promise<void>
  stop(): void
}

/** A runner as this conductor knows it: whether it lives, what it can do, how busy this conductor keeps it. */
export function createMember(link: RunnerLink, local: boolean, intervalMs: number, log: FastifyBaseLogger): Member {
  let running = 0
  let failures = 0
  let known: RunnerInfo | undefined
  const listeners = new Set<() => void>()
  let timer: NodeJS.Timeout | undefined
  let stopped = false
  let retryMs = firstRetryMs
  const stopping = new AbortController()

  // In this process there is nothing to reach: a local runner lives as long as we do.
  const live = (): boolean => local || (known !== undefined && failures < failuresUntilAway)
  const failed = (err: unknown): void => {
    const was = live()
    failures++
    if (was && !live()) log.warn({ err, runner: link.hash }, 'a runner is away')
  }
  const probe = async (): Promise<void> => {
    const was = live()
    try {
      const info = await link.info(AbortSignal.any([stopping.signal, AbortSignal.timeout(probeTimeoutMs)]))
      const fresh = known?.instance !== info.instance
      known = info
      failures = 0
      if (!was) log.info({ runner: link.hash, capabilities: info.capabilities }, 'a runner is live')
      if (fresh) for (const listener of listeners) listener()
    } catch (err) {
      if (!stopped) failed(err)
    }
    if (stopped) return
    retryMs = known === undefined ? Math.min(retryMs * 2, intervalMs) : intervalMs
    timer = setTimeout(() => void probe(), retryMs).unref()
  }
  return {
    link: {
      get hash() {
        return link.hash
      },
      info: (signal) => link.info(signal),
      putProfile: (tenantId, profile) => link.putProfile(tenantId, profile),
      deleteProfile: (tenantId, name) => link.deleteProfile(tenantId, name),
      putPool: (tenantId, pool) => link.putPool(tenantId, pool),
      deletePool: (tenantId, id) => link.deletePool(tenantId, id),
      getSession: (tenantId, sessionId) => link.getSession(tenantId, sessionId),
      deleteSession: (tenantId, sessionId) => link.deleteSession(tenantId, sessionId),
      hydrate: (tenantId, sessionId, profile, bundle) => link.hydrate(tenantId, sessionId, profile, bundle),
      exportState: (tenantId, sessionId) => link.exportState(tenantId, sessionId),
      async *execute(tenantId, run, signal) {
        running++
        try {
          yield* link.execute(tenantId, run, signal)
        } catch (error) {
          if (isAppError(error) && error.code === 'runner_unreachable') failed(error)
          throw error
        } finally {
          running--
        }
      },
    },
    get running() {
      return running
    },
    get live() {
      return live()
    },
    supports: (runtime) => !known || known.capabilities.length === 0 || known.capabilities.includes(runtime),
    describe: () => ({
      hash: link.hash,
      state: !live() ? 'unreachable' : known?.state === 'draining' ? 'draining' : 'live',
      capabilities: known?.capabilities ?? [],
      capabilitiesKnown: known?.capabilitiesKnown ?? false,
      substrates: known?.substrates ?? [],
      ...(known?.defaultSubstrate === undefined ? {} : { defaultSubstrate: known.defaultSubstrate }),
      substratesKnown: known?.substratesKnown ?? false,
      activeSessions: known?.activeSessions ?? null,
    }),
    onLive(listener) {
      listeners.add(listener)
      return () => void listeners.delete(listener)
    },
    start: probe,
    stop() {
      stopped = true
      clearTimeout(timer)
      stopping.abort()
    },
  }
}
