import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { BroadcastPage, BroadcastRevisions } from '#contracts/broadcast'
import type { Fleet, RunnerLink } from '#contracts/runner'

/** Milliseconds that an answer waits for the runners: enough for runners that are up, little for those that are not. */
const patienceMs = 500
/** Milliseconds until the first retry after a failure. The pause then doubles, up to the usual time between looks. */
const firstRetryMs = 1_000

/** The recorded changes of profiles and pools. */
export interface ChangeLog {
  /** The changes after a revision; without one, only the newest change. `more`: the page is not complete. Undefined: nothing changed. */
  page(tenantId: string, after: number | undefined): Promise<{ page: BroadcastPage; more: boolean } | undefined>
  /** The newest revision of every tenant, some thousands at a time. */
  revisions(): AsyncIterable<BroadcastRevisions>
}

interface BroadcastOptions {
  /** Undefined in a role without runners. */
  readonly fleet: Pick<Fleet, 'all' | 'onLive'> | undefined
  readonly log: Pick<FastifyBaseLogger, 'info' | 'warn'>
  readonly changes: ChangeLog
  /** Milliseconds between two looks at what all runners have. */
  readonly everyMs: number
  /** Ends the watch and all deliveries. */
  readonly signal: AbortSignal
}

/**
 * How a delivery ended. `failed`: these changes cannot be read now, or the runner refuses them, which says nothing about other tenants. `away`: the
 * runner did not answer.
 */
type Told = 'told' | 'failed' | 'away'

/** The delivery of one tenant's changes to one runner. A change that arrives meanwhile sets `again`, which causes one more look. */
interface Delivery {
  again: boolean
  done: Promise<Told>
}

/** The runner did not answer, or not as a runner does. Its refusals have statuses of their own. */
const isAway = (err: unknown): boolean => !isAppError(err) || err.status >= 500

/**
 * Brings every runner to the newest profiles and pools. It keeps no state: the database knows what changed, and each runner knows how far it has
 * followed. A runner that missed a change gets it when it becomes live, with the tenant's next change, or at the next look, from this conductor or
 * any other.
 */
export class BroadcastSender {
  readonly #options: BroadcastOptions
  readonly #deliveries = new Map<RunnerLink, Map<string, Delivery>>()
  /** Runners that could not be told. Each is logged once, and not every half minute while it cannot be reached. */
  readonly #failing = new Set<RunnerLink>()
  #retryMs = firstRetryMs
  #wake = new AbortController()

  constructor(options: BroadcastOptions) {
    this.#options = options
  }

  /**
   * Call it after a change has committed. Resolves when every runner has the change, or after half a second; the remaining runners are then told in
   * the background. Never rejects.
   */
  async changed(tenantId: string): Promise<void> {
    const { fleet, signal } = this.#options
    const told = (fleet?.all() ?? []).map((link) => this.#tell(link, tenantId))
    if (told.length === 0) return
    const enough = new AbortController()
    await Promise.race([Promise.all(told), pause(patienceMs, AbortSignal.any([enough.signal, signal]))])
    enough.abort()
  }

  /** Keeps all runners up to date until `signal` aborts. Call it before the fleet begins, so that it hears of each runner that becomes live. */
  async watch(): Promise<void> {
    const { fleet, everyMs, signal } = this.#options
    if (!fleet) return
    const stop = fleet.onLive((link) => void this.#look([link]))
    let waitMs = everyMs
    for (;;) {
      await pause(waitMs, AbortSignal.any([this.#wake.signal, signal]))
      if (signal.aborted) return stop()
      this.#wake = new AbortController()
      const done = await this.#look(fleet.all())
      waitMs = done ? everyMs : this.#retryMs
      this.#retryMs = done ? firstRetryMs : Math.min(this.#retryMs * 2, everyMs)
    }
  }

  /** Asks the runners for which tenants they lack changes, and sends those. False when a runner could not be told. */
  async #look(links: readonly RunnerLink[]): Promise<boolean> {
    const { changes, log, signal } = this.#options
    const well = new Set(links)
    const there = new Set(links)
    try {
      for await (const revisions of changes.revisions()) {
        await Promise.all(
          [...there].map(async (link) => {
            const told = await this.#catchUp(link, revisions)
            if (told !== 'told') well.delete(link)
            if (told === 'away') there.delete(link)
          }),
        )
      }
    } catch (err) {
      if (!signal.aborted) log.warn({ err }, 'the profiles and pools for runners cannot be read')
      return false
    }
    for (const link of well)
      if (this.#failing.delete(link))
        log.info({ runner: link.hash }, 'a runner has the newest profiles and pools again')
    return well.size === links.length
  }

  /**
   * Catches up one tenant at a time, because a restarted runner is behind with all of them. A tenant that cannot be told, for example because its
   * requests have all of its connections, keeps nobody else's changes from the runner.
   */
  async #catchUp(link: RunnerLink, revisions: BroadcastRevisions): Promise<Told> {
    try {
      let all: Told = 'told'
      for (const tenantId of await link.behind(revisions)) {
        const told = await this.#tell(link, tenantId)
        if (told === 'away') return told
        if (told === 'failed') all = told
      }
      return all
    } catch (err) {
      this.#failed(link, err)
      return 'away'
    }
  }

  /** Sends a runner everything that it lacks of a tenant, or joins a delivery that is under way. */
  #tell(link: RunnerLink, tenantId: string): Promise<Told> {
    const ofRunner = this.#deliveries.get(link) ?? new Map<string, Delivery>()
    this.#deliveries.set(link, ofRunner)
    const running = ofRunner.get(tenantId)
    if (running) {
      running.again = true
      return running.done
    }
    const delivery: Delivery = { again: true, done: Promise.resolve('told') }
    ofRunner.set(tenantId, delivery)
    const work = async (): Promise<Told> => {
      try {
        let told: Told = 'told'
        while (delivery.again && told === 'told') {
          delivery.again = false
          told = await this.#deliver(link, tenantId)
        }
        return told
      } catch (err) {
        this.#failed(link, err)
        return 'failed'
      } finally {
        ofRunner.delete(tenantId)
        if (ofRunner.size === 0) this.#deliveries.delete(link)
      }
    }
    return (delivery.done = work())
  }

  async #deliver(link: RunnerLink, tenantId: string): Promise<Told> {
    const { changes, signal } = this.#options
    // Nearly always a runner lacks only the newest change. If it lacks more, its answer says from where on.
    let after: number | undefined
    while (!signal.aborted) {
      const next = await changes.page(tenantId, after)
      if (!next) break
      const { page, more } = next
      let at: number
      try {
        at = await link.takeBroadcast(tenantId, page)
      } catch (err) {
        this.#failed(link, err)
        return isAway(err) ? 'away' : 'failed'
      }
      if (at >= page.revision && !more) break
      if (after !== undefined && at <= after)
        throw new Error('the runner does not accept the next page after its revision')
      after = at
    }
    return 'told'
  }

  /** Logs only the first of a runner's consecutive failures. */
  #failed(link: RunnerLink, err: unknown): void {
    const { log, signal } = this.#options
    if (signal.aborted || this.#failing.has(link)) return
    this.#failing.add(link)
    log.warn({ err, runner: link.hash }, 'a runner lacks the newest profiles and pools')
    this.#retryMs = firstRetryMs
    this.#wake.abort()
  }
}

const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  sleep(ms, undefined, { signal, ref: false }).catch(() => {})
