import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { Broadcast, BroadcastPage, BroadcastRevisions } from '#contracts/broadcast'
import type { RunnerLink, RunnerPool } from '#contracts/runner'

/** How long an answer waits for the runners: enough for those that are up, little for those that are not. */
const patienceMs = 500
/** After a failure the next look comes this soon, then after twice as long, up to the usual time between looks. */
const firstRetryMs = 1_000

/** What has changed, as the database has it. */
export interface ChangeLog {
  /** What changed after a revision; without one the newest change alone. `more`: that was not all. Undefined: nothing. */
  page(tenantId: string, after: number | undefined): Promise<{ page: BroadcastPage; more: boolean } | undefined>
  /** The newest revision of every tenant, some thousands at a time. */
  revisions(): AsyncIterable<BroadcastRevisions>
}

export interface BroadcastOptions {
  /** Undefined in a role without runners. */
  readonly pool: Pick<RunnerPool, 'all' | 'onLive'> | undefined
  readonly log: Pick<FastifyBaseLogger, 'info' | 'warn'>
  readonly changes: ChangeLog
  /** Between two looks at what all runners have. */
  readonly everyMs: number
  /** Ends all of it. */
  readonly signal: AbortSignal
}

/**
 * Brings every runner to the newest profiles and pools, and keeps nothing to do so: the database knows what changed and each
 * runner how far it has followed. What a runner missed, for whatever reason, it is told when it becomes live, with the next
 * change of the tenant, or at the next look, by this conductor or any other.
 */
export function createBroadcast({ pool, log, changes, everyMs, signal }: BroadcastOptions): Broadcast & {
  /** Looks after all runners until `signal` aborts. To be called before the pool begins: it hears of each that becomes live. */
  watch(): Promise<void>
} {
  // One delivery per runner and tenant; a change that comes meanwhile makes it look once more.
  const deliveries = new Map<RunnerLink, Map<string, { again: boolean; done: Promise<boolean> }>>()
  const failing = new Set<RunnerLink>()
  let retryMs = firstRetryMs
  let wake = new AbortController()

  /** Said once, and tried again at once: a runner that is away for a day is no news every half minute. */
  const failed = (link: RunnerLink, err: unknown): false => {
    if (signal.aborted || failing.has(link)) return false
    failing.add(link)
    log.warn({ err, runner: link.hash }, 'a runner lacks the newest profiles and pools')
    retryMs = firstRetryMs
    wake.abort()
    return false
  }
  const deliver = async (link: RunnerLink, tenantId: string): Promise<void> => {
    // Nearly always a runner lacks only the newest change. If it lacks more, its answer says what.
    let after: number | undefined
    while (!signal.aborted) {
      const next = await changes.page(tenantId, after)
      if (!next) return
      const { page, more } = next
      const at = await link.takeBroadcast(tenantId, page)
      if (at >= page.revision && !more) return
      if (after !== undefined && at <= after) throw new Error('the runner does not take what continues what it has')
      after = at
    }
  }
  const tell = (link: RunnerLink, tenantId: string): Promise<boolean> => {
    const ofRunner = deliveries.get(link) ?? new Map<string, { again: boolean; done: Promise<boolean> }>()
    deliveries.set(link, ofRunner)
    const running = ofRunner.get(tenantId)
    if (running) {
      running.again = true
      return running.done
    }
    const delivery = { again: true, done: Promise.resolve(true) }
    ofRunner.set(tenantId, delivery)
    const work = async (): Promise<boolean> => {
      try {
        while (delivery.again) {
          delivery.again = false
          await deliver(link, tenantId)
        }
        return true
      } catch (err) {
        return failed(link, err)
      } finally {
        ofRunner.delete(tenantId)
        if (ofRunner.size === 0) deliveries.delete(link)
      }
    }
    return (delivery.done = work())
  }
  /** Asks runners where they are behind, and tells them. False when one could not be told. */
  const look = async (links: readonly RunnerLink[]): Promise<boolean> => {
    const well = new Set(links)
    for await (const revisions of changes.revisions()) {
      await Promise.all(
        [...well].map(async (link) => {
          try {
            // One tenant at a time: a runner that was restarted is behind with all of them.
            for (const tenantId of await link.behind(revisions))
              if (!(await tell(link, tenantId))) return void well.delete(link)
          } catch (err) {
            well.delete(link)
            failed(link, err)
          }
        }),
      )
    }
    for (const link of well)
      if (failing.delete(link)) log.info({ runner: link.hash }, 'a runner has the newest profiles and pools again')
    return well.size === links.length
  }
  const lookSafely = (links: readonly RunnerLink[]): Promise<boolean> =>
    look(links).catch((err: unknown) => {
      if (!signal.aborted) log.warn({ err }, 'what runners should have cannot be read')
      return false
    })

  return {
    async changed(tenantId) {
      const told = (pool?.all() ?? []).map((link) => tell(link, tenantId))
      if (told.length === 0) return
      const enough = new AbortController()
      await Promise.race([Promise.all(told), pause(patienceMs, AbortSignal.any([enough.signal, signal]))])
      enough.abort()
    },
    async watch() {
      if (!pool) return
      const stop = pool.onLive((link) => void lookSafely([link]))
      let waitMs = everyMs
      for (;;) {
        await pause(waitMs, AbortSignal.any([wake.signal, signal]))
        if (signal.aborted) return stop()
        wake = new AbortController()
        const done = await lookSafely(pool.all())
        waitMs = done ? everyMs : retryMs
        retryMs = done ? firstRetryMs : Math.min(retryMs * 2, everyMs)
      }
    },
  }
}

const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  sleep(ms, undefined, { signal, ref: false }).catch(() => {})
