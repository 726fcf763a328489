import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { FleetMember, RunnerInfo, RunnerLink } from '#contracts/runner'
import { keysDiffer } from './remote-runner.ts'

const probeTimeoutMs = 2_000
/** Milliseconds until a runner that was never reached is asked again. Conductor and runners usually start together. */
const firstRetryMs = 100
/** Milliseconds between two looks at a runner that is about to stop and waits for its sessions to be saved. */
const drainingMs = 250

/** News about a runner: it is live with an empty memory, or it is about to stop. */
export type RunnerNews = 'live' | 'draining'

/** What a member needs of its fleet. */
interface MemberFleet {
  readonly options: FleetOptions
  /** Called when the hash or the state of a runner may have changed. */
  changed(): void
  tell(news: RunnerNews, link: RunnerLink): void
}

export interface FleetOptions {
  /** How often each runner is asked, in milliseconds. */
  readonly intervalMs: number
  readonly log: FastifyBaseLogger
}

/** A runner as this conductor knows it: whether it lives, what it can do, how busy it is. */
export class Member {
  readonly link: CountedLink
  /** Empty for the runner of this process, which lives as long as the process. */
  readonly url: string
  readonly #fleet: MemberFleet
  readonly #stopping = new AbortController()
  /** The runner's answer to the last successful probe. */
  #known: RunnerInfo | undefined
  #reached = false
  /** The latest probe was answered, but the runner did not accept this conductor's identity. */
  refused = false
  #drained = false
  #runningWhenAsked = 0
  #probing: Promise<void> | undefined
  #retryMs = firstRetryMs
  #timer: NodeJS.Timeout | undefined

  constructor(link: RunnerLink, url: string, fleet: MemberFleet) {
    // After a refused run the runner is probed at once: other runs are about to be sent there.
    this.link = counted(link, () => void this.probe())
    this.url = url
    this.#fleet = fleet
  }

  get state(): FleetMember['state'] {
    if (this.url !== '' && !this.#reached) return 'unreachable'
    return this.#drained || this.stopping ? 'draining' : 'live'
  }
  /** True when the runner said that it is about to stop. A runner that an operator drains keeps its sessions instead. */
  get stopping(): boolean {
    return this.#known?.state === 'draining'
  }
  /** Estimated runs under way on the runner: the number that it reported, adjusted by the runs that this conductor has sent and seen end since. */
  get load(): number {
    const reported = this.#known?.activeRuns ?? this.#runningWhenAsked
    const { running } = this.link
    return Math.max(running, reported + running - this.#runningWhenAsked)
  }
  /** Undefined: the runner could not say, because its sidecars did not answer. */
  supports(runtime: string): boolean | undefined {
    const known = this.#known
    if (!known) return this.url === '' ? true : undefined
    if (known.capabilities.includes(runtime)) return true
    // An empty list means all of them, unless the runner says that it does not know. Specification 2.12.
    if (known.capabilities.length > 0) return false
    return known.capabilitiesKnown === false ? undefined : true
  }
  /** Whether the runner has this substrate, or with `true` a default one. Undefined: the runner could not say. */
  hasSubstrate(substrate: string | true): boolean | undefined {
    const known = this.#known
    if (!known) return this.url === '' ? true : undefined
    if (substrate === true ? known.defaultSubstrate !== undefined : known.substrates.includes(substrate)) return true
    return known.substratesKnown === false ? undefined : false
  }
  /** True: the runner gets no new sessions until told otherwise. Existing sessions continue. */
  drain(on: boolean): void {
    this.#drained = on
    this.#fleet.changed()
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
      ...(known?.tools === undefined ? {} : { tools: known.tools }),
      activeSessions: (this.#reached ? known?.activeSessions : undefined) ?? null,
    }
  }

  /** Asks the runner now, and then periodically until stopped. */
  async start(): Promise<void> {
    await this.probe()
    if (this.#stopping.signal.aborted) return
    const { intervalMs } = this.#fleet.options
    if (!this.#known) this.#retryMs = Math.min(this.#retryMs * 2, intervalMs)
    else
      this.#retryMs = this.#reached && this.#known.state === 'draining' ? Math.min(drainingMs, intervalMs) : intervalMs
    this.#timer = setTimeout(() => void this.start(), this.#retryMs).unref()
  }
  stop(): void {
    clearTimeout(this.#timer)
    this.#stopping.abort()
  }
  /** Asks the runner now, or joins a probe that is under way. Never rejects. */
  probe(): Promise<void> {
    return (this.#probing ??= this.#probe().finally(() => {
      this.#probing = undefined
    }))
  }
  async #probe(): Promise<void> {
    const stopping = this.#stopping.signal
    const ask = () => this.link.info(AbortSignal.any([stopping, AbortSignal.timeout(probeTimeoutMs)]))
    try {
      // One lost answer may only mean a busy event loop, so the runner is asked once more before it counts as unreachable.
      this.#learn(await ask().catch((error) => (this.#reached && !stopping.aborted ? ask() : Promise.reject(error))))
    } catch (error) {
      this.#miss(error)
    }
  }
  #learn(info: RunnerInfo): void {
    const was = this.#reached
    // A foreign runner may not report which process it is. After an outage it then counts as a new process.
    const fresh = this.#known?.instance !== info.instance || (!info.instance && !was)
    this.#known = info
    this.#reached = true
    this.refused = false
    this.#runningWhenAsked = this.link.running
    this.#fleet.changed()
    if (!was)
      this.#fleet.options.log.info({ runner: this.link.hash, capabilities: info.capabilities }, 'a runner is live')
    if (fresh) this.#fleet.tell('live', this.link)
    if (info.state === 'draining') this.#fleet.tell('draining', this.link)
  }
  #miss(err: unknown): void {
    const before = this.refused
    this.refused = isAppError(err) && err.detail['status'] === 401
    if (this.refused && !before) this.#fleet.options.log.warn({ runner: this.link.hash }, keysDiffer)
    if (this.#stopping.signal.aborted || !this.#reached) return
    this.#reached = false
    this.#fleet.changed()
    if (this.url !== '') this.#fleet.options.log.warn({ err, runner: this.link.hash }, 'a runner cannot be reached')
  }
}

/** A runner's link that counts the runs which this process reads over it. */
interface CountedLink extends RunnerLink {
  /** Runs under way. */
  readonly running: number
}

/**
 * A link that behaves like the given one and counts runs. `refused` is called when a run's stream fails with 503, because the runner may be
 * unreachable.
 */
function counted(link: RunnerLink, refused: () => void): CountedLink {
  let running = 0
  /** A run's stream, counted from its first read to its end. A chunk costs one additional promise. */
  const count = (source: AsyncIterable<Buffer>): AsyncIterable<Buffer> => {
    let chunks: AsyncIterator<Buffer> | undefined
    let over = false
    const end = (): void => {
      if (!over) running--
      over = true
    }
    const failed = (error: unknown): never => {
      end()
      if (isAppError(error) && error.status === 503) refused()
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
          running++
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
  const execute: RunnerLink['execute'] = (...run) => count(link.execute(...run))
  const attach: RunnerLink['attach'] = (...run) => count(link.attach(...run))
  return Object.create(link, {
    execute: { value: execute },
    attach: { value: attach },
    running: { get: () => running },
  }) as CountedLink
}
