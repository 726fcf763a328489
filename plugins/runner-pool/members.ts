import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { FleetMember, RunnerInfo, RunnerLink } from '#contracts/runner'

const probeTimeoutMs = 2_000
/** A runner that was never reached is asked this soon again: conductor and runners usually start together. */
const firstRetryMs = 100
/** A runner that is about to stop waits for its sessions to be saved: it is looked at this often. */
const drainingMs = 250

interface MemberOptions {
  /** How often it is asked. */
  readonly intervalMs: number
  readonly log: FastifyBaseLogger
  /** It is live with an empty memory: for the first time, or its process is a new one. */
  readonly onLive: (link: RunnerLink) => void
  /** It was heard to be about to stop. */
  readonly onDraining: (link: RunnerLink) => void
  /** Its hash or its state may be another one. */
  readonly onChange: () => void
}

/** The runners of this conductor process, in the order in which they were added. */
export type Registry = ReturnType<typeof createRegistry>

export function createRegistry({ intervalMs, log }: Pick<MemberOptions, 'intervalMs' | 'log'>) {
  const all = new Set<Member>()
  const live = createListeners(log)
  const draining = createListeners(log)
  const warned = new Set<string>()
  let known: ReturnType<typeof look> | undefined
  const onChange = (): void => {
    known = undefined
  }
  const options: MemberOptions = { intervalMs, log, onLive: live.call, onDraining: draining.call, onChange }

  const warnOnce = (runner: string | undefined, ...urls: string[]): void => {
    const key = urls.join(' ')
    if (warned.has(key)) return
    warned.add(key)
    log.warn({ runner, urls }, 'two URLs lead to one runner; remove one of them')
  }
  const look = () => {
    const byHash = new Map<string | undefined, Member>()
    for (const member of all) {
      const hash = hashOf(member)
      const first = byHash.get(hash)
      if (first) warnOnce(hash, first.url, member.url)
      if (!first || (first.state === 'unreachable' && member.state !== 'unreachable')) byHash.set(hash, member)
    }
    return { byHash, members: [...byHash.values()] }
  }
  const now = () => (known ??= look())
  return {
    /** Each runner once: two URLs whose runners report one hash are one runner. */
    members: (): readonly Member[] => now().members,
    find: (hash: string): Member | undefined => now().byHash.get(hash),
    /** The member behind this very URL. */
    at: (url: string): Member | undefined => [...all].find((member) => member.url === url),
    add(link: RunnerLink, url: string): Member {
      const member = new Member(link, url, options)
      all.add(member)
      onChange()
      return member
    },
    remove(member: Member): void {
      member.stop()
      all.delete(member)
      onChange()
    },
    onLive: live.add,
    onDraining: draining.add,
    stop(): void {
      for (const member of all) member.stop()
    },
  }
}

/** Undefined for the runner of this process while it does not know its address yet. */
function hashOf(member: Member): string | undefined {
  try {
    return member.link.hash
  } catch {
    return undefined
  }
}

/** What one listener throws is its own: the others and the probe go on. */
function createListeners(log: FastifyBaseLogger) {
  const listeners = new Set<(link: RunnerLink) => void>()
  return {
    add(listener: (link: RunnerLink) => void): () => void {
      listeners.add(listener)
      return () => void listeners.delete(listener)
    },
    call(link: RunnerLink): void {
      for (const listener of listeners) {
        try {
          listener(link)
        } catch (err) {
          log.error({ err }, 'a listener of the runner pool failed')
        }
      }
    },
  }
}

/** A runner as this conductor knows it: whether it lives, what it can do, how busy it is. */
export class Member {
  readonly link: RunnerLink
  /** '' for the runner of this process: there is nothing to reach, it lives as long as we do. */
  readonly url: string
  readonly #options: MemberOptions
  readonly #stopping = new AbortController()
  /** What it said when it was last reached. */
  #known: RunnerInfo | undefined
  #reached = false
  #drained = false
  #running = 0
  #runningWhenAsked = 0
  #probing: Promise<void> | undefined
  #retryMs = firstRetryMs
  #timer: NodeJS.Timeout | undefined

  constructor(link: RunnerLink, url: string, options: MemberOptions) {
    // The link itself, but for what streams: its runs are counted.
    this.link = Object.assign(Object.create(link) as RunnerLink, {
      execute: (...args) => this.#counted(link.execute(...args)),
      attach: (...args) => this.#counted(link.attach(...args)),
    } satisfies Partial<RunnerLink>)
    this.url = url
    this.#options = options
  }

  get state(): FleetMember['state'] {
    if (this.url !== '' && !this.#reached) return 'unreachable'
    return this.#drained || this.#known?.state === 'draining' ? 'draining' : 'live'
  }
  /** Runs under way on it as far as can be told: what it said, and what this conductor has sent and seen end since. */
  get load(): number {
    const reported = this.#known?.activeRuns ?? this.#runningWhenAsked
    return Math.max(this.#running, reported + this.#running - this.#runningWhenAsked)
  }
  /** Undefined: it could not say, because its sidecars did not answer it. */
  supports(runtime: string): boolean | undefined {
    const known = this.#known
    if (!known) return this.url === '' ? true : undefined
    if (known.capabilities.includes(runtime)) return true
    // An empty list means all of them, unless the runner says that it does not know. Specification 2.12.
    if (known.capabilities.length > 0) return false
    return known.capabilitiesKnown === false ? undefined : true
  }
  /** Whether it has this substrate, or with `true` a default one. Undefined as for a runtime. */
  hasSubstrate(substrate: string | true): boolean | undefined {
    const known = this.#known
    if (!known) return this.url === '' ? true : undefined
    if (substrate === true ? known.defaultSubstrate !== undefined : known.substrates.includes(substrate)) return true
    return known.substratesKnown === false ? undefined : false
  }
  /** No new sessions until told otherwise; what is there goes on. */
  drain(on: boolean): void {
    this.#drained = on
    this.#options.onChange()
  }
  describe(): FleetMember {
    const known = this.#known
    return {
      hash: this.link.hash,
      state: this.state,
      capabilities: known?.capabilities ?? [],
      capabilitiesKnown: known?.capabilitiesKnown ?? false,
      ...(known?.missing === undefined ? {} : { missing: known.missing }),
      substrates: [...new Set(known?.substrates)].toSorted(),
      ...(known?.defaultSubstrate === undefined ? {} : { defaultSubstrate: known.defaultSubstrate }),
      substratesKnown: known?.substratesKnown ?? false,
      activeSessions: (this.#reached ? known?.activeSessions : undefined) ?? null,
    }
  }

  /** Asks the runner now, then again and again until stopped. */
  async start(): Promise<void> {
    await this.probe()
    if (this.#stopping.signal.aborted) return
    const { intervalMs } = this.#options
    if (!this.#known) this.#retryMs = Math.min(this.#retryMs * 2, intervalMs)
    else
      this.#retryMs = this.#reached && this.#known.state === 'draining' ? Math.min(drainingMs, intervalMs) : intervalMs
    this.#timer = setTimeout(() => void this.start(), this.#retryMs).unref()
  }
  stop(): void {
    clearTimeout(this.#timer)
    this.#stopping.abort()
  }
  /** Asks the runner now; a probe under way is joined. Never rejects. */
  probe(): Promise<void> {
    return (this.#probing ??= this.#probe().finally(() => {
      this.#probing = undefined
    }))
  }
  async #probe(): Promise<void> {
    try {
      // One lost answer is a hiccup, of a busy event loop perhaps: the runner is asked once more before it counts as away.
      const info = await this.#ask().catch((error: unknown) => {
        if (!this.#reached || this.#stopping.signal.aborted) throw error
        return this.#ask()
      })
      this.#learn(info)
    } catch (error) {
      this.#miss(error)
    }
  }
  #ask(): Promise<RunnerInfo> {
    return this.link.info(AbortSignal.any([this.#stopping.signal, AbortSignal.timeout(probeTimeoutMs)]))
  }
  #learn(info: RunnerInfo): void {
    const { onChange, onLive, onDraining, log } = this.#options
    const was = this.#reached
    // One of another maker need not say which process it is: then coming back counts as a new one.
    const fresh = this.#known?.instance !== info.instance || (!info.instance && !was)
    this.#known = info
    this.#reached = true
    this.#runningWhenAsked = this.#running
    onChange()
    if (!was) log.info({ runner: this.link.hash, capabilities: info.capabilities }, 'a runner is live')
    if (fresh) onLive(this.link)
    if (info.state === 'draining') onDraining(this.link)
  }
  #miss(err: unknown): void {
    if (this.#stopping.signal.aborted || !this.#reached) return
    this.#reached = false
    this.#options.onChange()
    if (this.url !== '') this.#options.log.warn({ err, runner: this.link.hash }, 'a runner is away')
  }

  /** A run's stream, counted from its first read to its end; nothing is added to a chunk's cost but its own promise. */
  #counted(source: AsyncIterable<Buffer>): AsyncIterable<Buffer> {
    let chunks: AsyncIterator<Buffer> | undefined
    let over = false
    const end = (): void => {
      if (!over) this.#running--
      over = true
    }
    const failed = (error: unknown): never => {
      end()
      // Whether it is away is found out at once, not at the next probe: other runs are about to be sent there.
      if (isAppError(error) && error.status === 503) void this.probe()
      throw error
    }
    const read = (result: IteratorResult<Buffer>): IteratorResult<Buffer> => {
      if (result.done) end()
      return result
    }
    const all: AsyncIterableIterator<Buffer> = {
      [Symbol.asyncIterator]: () => all,
      next: () => {
        if (!chunks) {
          this.#running++
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
}
