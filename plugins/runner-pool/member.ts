import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { FleetMember, RunnerInfo, RunnerLink } from '#contracts/runner'

const probeTimeoutMs = 2_000
/** A runner that was never reached is asked this soon again: conductor and runners usually start together. */
const firstRetryMs = 100
/** A runner that is about to stop waits for its sessions to be saved: it is looked at this often. */
const drainingMs = 250

export type MemberState = FleetMember['state']

export interface Member {
  readonly link: RunnerLink
  /** '' for the runner of this process. */
  readonly url: string
  readonly state: MemberState
  /** Runs under way on it as far as can be told, other conductors' included. */
  readonly load: number
  /** Undefined: it could not say, because its sidecars did not answer it. */
  supports(runtime: string): boolean | undefined
  /** Whether it has this substrate, or with `true` a default one. Undefined as for a runtime. */
  hasSubstrate(substrate: string | true): boolean | undefined
  /** No new sessions until told otherwise; what is there goes on. */
  drain(on: boolean): void
  describe(): FleetMember
  /** Asks the runner now; a probe under way is joined. Never rejects. */
  probe(): Promise<void>
  /** Asks the runner now, then again and again until stopped. */
  start(): Promise<void>
  stop(): void
}

export interface MemberOptions {
  readonly url: string
  readonly intervalMs: number
  readonly log: Pick<FastifyBaseLogger, 'info' | 'warn'>
  /** It is live with an empty memory: for the first time, or its process is a new one. */
  readonly onLive: (member: Member) => void
  /** It was heard to be about to stop. */
  readonly onDraining: (member: Member) => void
  /** Its hash or its state may be another one. */
  readonly onChange: () => void
}

/** A runner as this conductor knows it: whether it lives, what it can do, how busy it is. */
export function createMember(raw: RunnerLink, options: MemberOptions): Member {
  const { url, intervalMs, log } = options
  // In this process there is nothing to reach: a local runner lives as long as we do.
  const local = url === ''
  let running = 0
  let runningWhenAsked = 0
  let known: RunnerInfo | undefined
  let reached = false
  let drained = false
  let stopped = false
  let timer: NodeJS.Timeout | undefined
  let retryMs = firstRetryMs
  let probing: Promise<void> | undefined
  const stopping = new AbortController()

  const state = (): MemberState =>
    !local && !reached ? 'unreachable' : drained || known?.state === 'draining' ? 'draining' : 'live'
  const ask = (): Promise<RunnerInfo> =>
    raw.info(AbortSignal.any([stopping.signal, AbortSignal.timeout(probeTimeoutMs)]))
  const learn = (info: RunnerInfo): void => {
    const was = reached
    // One of another maker need not say which process it is: then coming back counts as a new one.
    const fresh = known?.instance !== info.instance || (!info.instance && !was)
    known = info
    reached = true
    runningWhenAsked = running
    options.onChange()
    if (!was) log.info({ runner: raw.hash, capabilities: info.capabilities }, 'a runner is live')
    if (fresh) options.onLive(member)
    if (info.state === 'draining') options.onDraining(member)
  }
  const miss = (err: unknown): void => {
    if (stopped || !reached) return
    reached = false
    options.onChange()
    if (!local) log.warn({ err, runner: raw.hash }, 'a runner is away')
  }
  const probeNow = async (): Promise<void> => {
    try {
      // One lost answer is a hiccup, of a busy event loop perhaps: the runner is asked once more before it counts as away.
      learn(
        await ask().catch((error: unknown) => {
          if (!reached || stopped) throw error
          return ask()
        }),
      )
    } catch (error) {
      miss(error)
    }
  }
  const probe = (): Promise<void> =>
    (probing ??= probeNow().finally(() => {
      probing = undefined
    }))
  const loop = async (): Promise<void> => {
    await probe()
    if (stopped) return
    if (!known) retryMs = Math.min(retryMs * 2, intervalMs)
    else retryMs = reached && known.state === 'draining' ? Math.min(drainingMs, intervalMs) : intervalMs
    timer = setTimeout(() => void loop(), retryMs).unref()
  }
  const link = countedLink(raw, {
    begun: () => void running++,
    ended: () => void running--,
    // Whether it is away is found out at once, not at the next probe: other runs are about to be sent there.
    failed: (error) => {
      if (isAppError(error) && error.status === 503) void probe()
    },
  })
  const member: Member = {
    link,
    url,
    get state() {
      return state()
    },
    get load() {
      // What the runner said, and what this conductor has sent and seen end since.
      const reported = known?.activeRuns ?? runningWhenAsked
      return Math.max(running, reported + running - runningWhenAsked)
    },
    supports(runtime) {
      if (!known) return local ? true : undefined
      if (known.capabilities.includes(runtime)) return true
      // An empty list means all of them, unless the runner says that it does not know. Specification 2.12.
      if (known.capabilities.length > 0) return false
      return known.capabilitiesKnown === false ? undefined : true
    },
    hasSubstrate(substrate) {
      if (!known) return local ? true : undefined
      if (substrate === true ? known.defaultSubstrate !== undefined : known.substrates.includes(substrate)) return true
      return known.substratesKnown === false ? undefined : false
    },
    drain(on) {
      drained = on
      options.onChange()
    },
    describe: () => ({
      hash: raw.hash,
      state: state(),
      capabilities: known?.capabilities ?? [],
      capabilitiesKnown: known?.capabilitiesKnown ?? false,
      ...(known?.missing === undefined ? {} : { missing: known.missing }),
      substrates: [...new Set(known?.substrates)].toSorted(),
      ...(known?.defaultSubstrate === undefined ? {} : { defaultSubstrate: known.defaultSubstrate }),
      substratesKnown: known?.substratesKnown ?? false,
      activeSessions: (reached ? known?.activeSessions : undefined) ?? null,
    }),
    probe,
    start: loop,
    stop() {
      stopped = true
      clearTimeout(timer)
      stopping.abort()
    },
  }
  return member
}

interface Counter {
  begun(): void
  ended(): void
  failed(error: unknown): void
}

/** The link itself, but for what streams: its runs are counted. */
function countedLink(raw: RunnerLink, counter: Counter): RunnerLink {
  return {
    get hash() {
      return raw.hash
    },
    info: (...args) => raw.info(...args),
    takeBroadcast: (...args) => raw.takeBroadcast(...args),
    behind: (...args) => raw.behind(...args),
    getSession: (...args) => raw.getSession(...args),
    deleteSession: (...args) => raw.deleteSession(...args),
    hydrate: (...args) => raw.hydrate(...args),
    exportState: (...args) => raw.exportState(...args),
    unsaved: () => raw.unsaved(),
    topology: (...args) => raw.topology(...args),
    workerLeases: (...args) => raw.workerLeases(...args),
    workerLease: (...args) => raw.workerLease(...args),
    invalidateSandbox: (...args) => raw.invalidateSandbox(...args),
    vfsLeases: (...args) => raw.vfsLeases(...args),
    vfsLease: (...args) => raw.vfsLease(...args),
    delegations: (...args) => raw.delegations(...args),
    answerDelegation: (...args) => raw.answerDelegation(...args),
    execute: (...args) => counted(raw.execute(...args), counter),
    attach: (...args) => counted(raw.attach(...args), counter),
  }
}

/** A stream that tells when it begins and ends; nothing is added to what a chunk costs but its own promise. */
function counted(source: AsyncIterable<Buffer>, counter: Counter): AsyncIterable<Buffer> {
  let chunks: AsyncIterator<Buffer> | undefined
  let over = false
  const end = (): void => {
    if (!over) counter.ended()
    over = true
  }
  const failed = (error: unknown): never => {
    end()
    counter.failed(error)
    throw error
  }
  const read = (result: IteratorResult<Buffer>): IteratorResult<Buffer> => {
    if (result.done) end()
    return result
  }
  const all: AsyncIterableIterator<Buffer> = {
    [Symbol.asyncIterator]: () => all,
    next() {
      if (!chunks) {
        counter.begun()
        chunks = source[Symbol.asyncIterator]()
      }
      return chunks.next().then(read, failed)
    },
    async return() {
      const begun = chunks
      chunks ??= source[Symbol.asyncIterator]()
      if (begun) end()
      return (await chunks.return?.()) ?? { done: true, value: undefined }
    },
  }
  return all
}
