import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import type { Job, PgBoss } from 'pg-boss'
import type { Jobs, Wake } from '#contracts/jobs'

/** How many wake-ups of a kind a process takes at once. */
const abreast = 40
/** How many one look takes at most. */
const atOnce = 10
/** While a process has so many of one tenant, or as many as it has places left, it takes no more of it. */
const each = 10
/** How often a process looks for wake-ups that were due later. It is notified of those that are due at once. */
const lookMs = 5_000

type Taken = Job<Wake['what']>

interface TakerOptions {
  readonly boss: Pick<PgBoss, 'fetch' | 'complete' | 'fail' | 'touch'>
  readonly name: string
  readonly work: Parameters<Jobs['wakeUps']>[1]
  /** How long a wake-up stays with a process that does not say that it has it. */
  readonly heartbeatSeconds: number
  readonly log: Pick<FastifyBaseLogger, 'warn'>
}

/**
 * Takes wake-ups of one kind. Each is reported when it ends, and its place is free then, whatever the others do. The workers of pg-boss take batches,
 * which end with their slowest wake-up: one tenant whose statements wait for its own connections had a part in each batch of a process.
 */
export class Taker {
  readonly #options: TakerOptions
  readonly #taken = new Set<Taken>()
  readonly #timers: readonly NodeJS.Timeout[]
  readonly #under = new Set<Promise<void>>()
  /** The tenants that the last look left out. */
  #passedBy: string[] = []
  #looking = false
  #again = false
  #ended = { done: [] as Taken[], failed: [] as Taken[] }
  #reported: Promise<void> = Promise.resolve()
  /** The report that has not begun yet. */
  #gathering: Promise<void> | undefined
  #stopped = false

  constructor(options: TakerOptions) {
    this.#options = options
    this.#timers = [
      setInterval(() => this.look(), lookMs).unref(),
      setInterval(() => void this.#keep(), options.heartbeatSeconds * 500).unref(),
    ]
    this.look()
  }

  /** Takes what is due, as far as there is room. */
  look(): void {
    this.#again = true
    if (this.#looking || this.#stopped) return
    this.#looking = true
    this.#track(this.#take())
  }

  /** Takes no more, and resolves when all that was taken has ended, or after `ms`: other processes then take what has not ended. */
  async stop(ms: number): Promise<void> {
    this.#stopped = true
    for (const timer of this.#timers) clearInterval(timer)
    const end = async (): Promise<void> => {
      while (this.#under.size > 0) await Promise.all(this.#under)
    }
    await Promise.race([end(), sleep(ms, undefined, { ref: false })])
    const { boss, name } = this.#options
    if (this.#taken.size > 0) await boss.fail(name, [...this.#taken]).catch(() => {})
  }

  async #take(): Promise<void> {
    const { boss, name, log } = this.#options
    try {
      while (this.#again && !this.#stopped && this.#taken.size < abreast) {
        this.#again = false
        const free = abreast - this.#taken.size
        // All of one look may be of one tenant. Half of what is free stays for the tenants that come next.
        const batchSize = Math.min(atOnce, Math.ceil(free / 2))
        const tenants = new Set([...this.#taken].map((job) => job.groupId!))
        this.#passedBy = [...tenants].filter((id) => this.#hasItsPart(id))
        const jobs = await boss.fetch<Wake['what']>(name, { batchSize, ignoreGroups: this.#passedBy })
        for (const job of jobs) this.#track(this.#do(job))
        if (jobs.length === batchSize) this.#again = true
      }
    } catch (err) {
      log.warn({ err, job: name }, 'wake-ups wait for the database')
    } finally {
      this.#looking = false
    }
  }

  async #do(job: Taken): Promise<void> {
    const { name, work, log } = this.#options
    this.#taken.add(job)
    try {
      await work(job.data)
      this.#ended.done.push(job)
    } catch (err) {
      log.warn({ err, job: name }, 'a wake-up failed; it is repeated')
      this.#ended.failed.push(job)
    }
    await this.#report()
    const wasFull = this.#taken.size === abreast
    this.#taken.delete(job)
    // What was passed by for want of room is looked for now.
    if (wasFull || this.#passedBy.some((id) => !this.#hasItsPart(id))) this.look()
  }

  /** Reports what has ended. While one report is under way the next one gathers. */
  #report(): Promise<void> {
    if (this.#gathering) return this.#gathering
    this.#reported = this.#gathering = this.#reported.then(() => this.#send())
    return this.#reported
  }
  async #send(): Promise<void> {
    const { boss, name, log } = this.#options
    const { done, failed } = this.#ended
    this.#gathering = undefined
    this.#ended = { done: [], failed: [] }
    try {
      if (done.length > 0) await boss.complete(name, done)
      if (failed.length > 0) await boss.fail(name, failed)
    } catch (err) {
      log.warn({ err, job: name }, 'the end of wake-ups could not be reported; they are repeated')
    }
  }

  async #keep(): Promise<void> {
    const { boss, name, log } = this.#options
    if (this.#taken.size === 0) return
    await boss
      .touch(name, [...this.#taken])
      .catch((err: unknown) => log.warn({ err, job: name }, 'wake-ups could not be kept'))
  }

  #hasItsPart(tenantId: string): boolean {
    let held = 0
    for (const { groupId } of this.#taken) if (groupId === tenantId) held++
    return held >= Math.min(each, abreast - this.#taken.size)
  }
  #track(promise: Promise<void>): void {
    this.#under.add(promise)
    void promise.finally(() => this.#under.delete(promise))
  }
}
