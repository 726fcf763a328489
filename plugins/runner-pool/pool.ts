import { createHash } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import { appError, isAppError } from '#kernel'
import { hashOfSession } from '#contracts/ids'
import type { FleetMember, Homecoming, Placement, RunnerInfo, RunnerLink, RunnerPool } from '#contracts/runner'

const probeTimeoutMs = 2_000
/** A runner that was never reached is asked this soon again: conductor and runners usually start together. */
const firstRetryMs = 100
/** A runner that is about to stop waits for its sessions to be saved: it is looked at this often. */
const drainingMs = 250

const noRunner = appError('no_runner', 503)

/** What is told of a runner: that it is live with an empty memory, or about to stop. */
type News = 'live' | 'draining'
type Listener = (link: RunnerLink) => void

export interface PoolOptions {
  /** How often each runner is asked. */
  readonly intervalMs: number
  readonly log: FastifyBaseLogger
}

/**
 * The runners of this conductor process, in the order in which they were added. Places sessions on the least busy one that can
 * execute them, and finds the runner of a session again.
 */
export class Pool implements RunnerPool {
  readonly options: PoolOptions
  readonly #all = new Set<Member>()
  readonly #listeners = { live: new Set<Listener>(), draining: new Set<Listener>() }
  readonly #warned = new Set<string>()
  /** Each runner once, by its hash, until something changes: two URLs whose runners report one hash are one runner. */
  #known: Map<string | undefined, Member> | undefined
  // Conductors that start together do not begin with the same runner.
  #turn = Math.floor(Math.random() * 1_000)

  constructor(options: PoolOptions) {
    this.options = options
  }

  add(link: RunnerLink, url: string): Member {
    const member = new Member(link, url, this)
    this.#all.add(member)
    this.changed()
    return member
  }
  remove(member: Member): void {
    member.stop()
    this.#all.delete(member)
    this.changed()
  }
  stop(): void {
    for (const member of this.#all) member.stop()
  }
  members(): readonly Member[] {
    return [...this.#byHash.values()]
  }
  find(hash: string): Member | undefined {
    return this.#byHash.get(hash)
  }
  /** The member behind this very URL. */
  at(url: string): Member | undefined {
    return [...this.#all].find((member) => member.url === url)
  }

  place(order: Placement): RunnerLink {
    const candidates = eligible(order, this.members())
    this.#turn++
    let best: Member | undefined
    for (let i = 0; i < candidates.length; i++) {
      // Equally busy runners take turns.
      const member = candidates[(this.#turn + i) % candidates.length]!
      if (!best || member.load < best.load) best = member
    }
    if (!best) throw this.#refusal(order)
    return best.link
  }
  home(order: Homecoming): RunnerLink {
    const { sessionId, without, runner = hashOfSession(sessionId) } = order
    const own = runner === undefined || without?.has(runner) ? undefined : this.find(runner)
    if (own && own.state !== 'unreachable') return own.link
    // Rendezvous hashing: every conductor that knows the same runners chooses the same one, without asking anybody.
    const [chosen] = eligible(order, this.members())
      .map((member) => ({ member, weight: weightOf(sessionId, member.link.hash) }))
      .toSorted((a, b) => (a.weight < b.weight ? 1 : -1))
    if (!chosen) throw this.#refusal(order)
    return chosen.member.link
  }
  owner(sessionId: string, runner = hashOfSession(sessionId)): RunnerLink | undefined {
    return runner === undefined ? undefined : this.find(runner)?.link
  }
  readonly all = (): readonly RunnerLink[] => this.members().map((member) => member.link)
  readonly fleet = (): readonly FleetMember[] => this.members().map((member) => member.describe())
  readonly onLive = (listener: Listener): (() => void) => this.#listen('live', listener)
  readonly onDraining = (listener: Listener): (() => void) => this.#listen('draining', listener)

  /** The hash or the state of a runner may be another one. */
  changed(): void {
    this.#known = undefined
  }
  /** What one listener throws is its own: the others and the probe go on. */
  tell(news: News, link: RunnerLink): void {
    for (const listener of this.#listeners[news]) {
      try {
        listener(link)
      } catch (err) {
        this.options.log.error({ err }, 'a listener of the runner pool failed')
      }
    }
  }

  get #byHash(): ReadonlyMap<string | undefined, Member> {
    if (this.#known) return this.#known
    const known = (this.#known = new Map<string | undefined, Member>())
    for (const member of this.#all) {
      const hash = hashOf(member)
      const first = known.get(hash)
      const urls = first && [first.url, member.url]
      if (urls && !this.#warned.has(urls.join(' '))) {
        this.#warned.add(urls.join(' '))
        this.options.log.warn({ runner: hash, urls }, 'two URLs lead to one runner; remove one of them')
      }
      if (!first || (first.state === 'unreachable' && member.state !== 'unreachable')) known.set(hash, member)
    }
    return known
  }
  #listen(news: News, listener: Listener): () => void {
    this.#listeners[news].add(listener)
    return () => void this.#listeners[news].delete(listener)
  }
  #refusal(order: Wanted): Error {
    return noRunner({ retryable: true, message: whyNone(order, this.members()) })
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

/** A runner as this conductor knows it: whether it lives, what it can do, how busy it is. */
export class Member {
  readonly link: RunnerLink
  /** '' for the runner of this process: there is nothing to reach, it lives as long as we do. */
  readonly url: string
  readonly #pool: Pool
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

  constructor(link: RunnerLink, url: string, pool: Pool) {
    // The link itself, but for what streams: its runs are counted.
    this.link = Object.assign(Object.create(link) as RunnerLink, {
      execute: (...args) => this.#counted(link.execute(...args)),
      attach: (...args) => this.#counted(link.attach(...args)),
    } satisfies Partial<RunnerLink>)
    this.url = url
    this.#pool = pool
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
    this.#pool.changed()
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
    const { intervalMs } = this.#pool.options
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
    const stopping = this.#stopping.signal
    const ask = () => this.link.info(AbortSignal.any([stopping, AbortSignal.timeout(probeTimeoutMs)]))
    try {
      // One lost answer is a hiccup, of a busy event loop perhaps: the runner is asked once more before it counts as away.
      this.#learn(await ask().catch((error) => (this.#reached && !stopping.aborted ? ask() : Promise.reject(error))))
    } catch (error) {
      this.#miss(error)
    }
  }
  #learn(info: RunnerInfo): void {
    const was = this.#reached
    // One of another maker need not say which process it is: then coming back counts as a new one.
    const fresh = this.#known?.instance !== info.instance || (!info.instance && !was)
    this.#known = info
    this.#reached = true
    this.#runningWhenAsked = this.#running
    this.#pool.changed()
    if (!was)
      this.#pool.options.log.info({ runner: this.link.hash, capabilities: info.capabilities }, 'a runner is live')
    if (fresh) this.#pool.tell('live', this.link)
    if (info.state === 'draining') this.#pool.tell('draining', this.link)
  }
  #miss(err: unknown): void {
    if (this.#stopping.signal.aborted || !this.#reached) return
    this.#reached = false
    this.#pool.changed()
    if (this.url !== '') this.#pool.options.log.warn({ err, runner: this.link.hash }, 'a runner is away')
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

type Wanted = Pick<Homecoming, 'runtime' | 'pool' | 'substrate' | 'without'>

/** Live members that may take a session; those that certainly can, or else those that do not know themselves. */
function eligible({ runtime, pool, substrate, without }: Wanted, members: readonly Member[]): readonly Member[] {
  if (runtime !== undefined && pool?.runtimes && !pool.runtimes.includes(runtime)) return []
  const allowed = members.filter(
    ({ state, link }) =>
      state === 'live' && !without?.has(link.hash) && (!pool?.runners || pool.runners.includes(link.hash)),
  )
  const can = (member: Member): readonly (boolean | undefined)[] => [
    runtime === undefined || member.supports(runtime),
    substrate === undefined || member.hasSubstrate(substrate),
  ]
  const able = allowed.filter((member) => can(member).every((yes) => yes === true))
  return able.length > 0 ? able : allowed.filter((member) => !can(member).includes(false))
}

const weightOf = (sessionId: string, hash: string): string =>
  createHash('sha256').update(`${sessionId}\n${hash}`).digest('hex')

/** What was asked for and what there is, in counts only: tenants see this sentence. */
function whyNone({ runtime, pool, substrate }: Wanted, members: readonly Member[]): string {
  const inPool = pool ? ' in its pool' : ''
  const inSandbox =
    substrate === undefined
      ? ''
      : substrate === true
        ? ' in a sandbox of its default provider'
        : ` in a sandbox of '${substrate}'`
  const wanted = `${runtime === undefined ? 'the session' : `a session of the runtime '${runtime}'`}${inSandbox}${inPool}`
  const count = (state: string): number => members.filter((member) => member.state === state).length
  const alive = members.filter((member) => member.state === 'live').map((member) => member.describe())
  const listed = (names: readonly string[]): string => [...new Set(names)].toSorted().join(', ')
  const unable = runtime !== undefined && members.every((member) => member.supports(runtime) === false)
  const needs = unable ? alive.map(({ missing }) => missing?.[runtime]).find((why) => why !== undefined) : undefined
  if (needs !== undefined) return needs
  const runtimes = listed(alive.flatMap(({ capabilities }) => capabilities))
  const sandboxes = listed(alive.flatMap(({ substrates }) => substrates)) || 'none'
  const offered = [...(runtimes ? [runtimes] : []), ...(substrate === undefined ? [] : [`sandboxes: ${sandboxes}`])]
  const undecided = substrate === true && alive.length > 0 && alive.every(({ defaultSubstrate }) => !defaultSubstrate)
  const advice = undecided && sandboxes !== 'none' ? 'Name one as sandbox.provider of the profile.' : 'Try again.'
  const live = `${count('live')} live${offered.length > 0 ? ` (${offered.join('; ')})` : ''}`
  return `No runner can take ${wanted} now: ${live}, ${count('draining')} draining, ${count('unreachable')} unreachable. ${advice}`
}
