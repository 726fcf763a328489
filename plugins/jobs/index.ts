import type { FastifyBaseLogger } from 'fastify'
import type { PgBoss } from 'pg-boss'
import { definePlugin } from '#kernel'
import { type Connections, Database } from '#contracts/database'
import { Jobs } from '#contracts/jobs'
import { retry } from '#kit'

/** Work by schedule that must be done whichever process dies, on pg-boss. */
export default definePlugin({
  name: 'jobs',
  requires: { database: Database },
  provides: { jobs: Jobs },
  async setup({ deps, log, stopping, onStart, onStop }) {
    const queue = new JobQueue(deps.database, log, stopping)
    if (!deps.database.absent) onStart(async () => queue.start())
    onStop(() => queue.stop())
    return { jobs: queue }
  },
})

/** Connections for pg-boss: one waits for no other for long, since its statements are small. */
const connections = 2
/** A job whose process has not said for so long that it lives is another one's. */
const heartbeatSeconds = 30
/** The longest that one job may take; what is left is for the next one. */
const expireInSeconds = 12 * 3_600
/** How often each process looks for jobs that another one has asked for; its own it begins at once. */
const askSeconds = 15
const stopMs = 5_000

interface Job {
  readonly cron: string
  readonly work: (signal: AbortSignal) => Promise<void>
}

/** Jobs on pg-boss, in the schema `pgboss`. The boot does not wait for it, and it heals when the database comes back. */
class JobQueue implements Jobs {
  readonly #database: Database
  readonly #log: FastifyBaseLogger
  readonly #stopping: AbortSignal
  readonly #jobs = new Map<string, Job>()
  /** Ids of pg-boss for what looks for each job here. */
  readonly #workers = new Map<string, string>()
  #connections: Connections | undefined
  #boss: PgBoss | undefined
  #starting: Promise<void> | undefined

  constructor(database: Database, log: FastifyBaseLogger, stopping: AbortSignal) {
    this.#database = database
    this.#log = log
    this.#stopping = stopping
  }

  every(name: string, cron: string, work: Job['work']): void {
    this.#jobs.set(name, { cron, work })
  }
  async ask(name: string): Promise<void> {
    await this.#starting
    // With nobody to do it now, the schedule has it done.
    await this.#boss?.send(name, {})
    const worker = this.#workers.get(name)
    if (worker !== undefined) this.#boss?.notifyWorker(worker)
  }

  start(): void {
    if (this.#jobs.size === 0) return
    const open = this.#database.connections(connections)
    this.#connections = open
    this.#starting = retry(() => this.#open(open), { firstMs: 500, longestMs: 10_000, signal: this.#stopping }).catch(
      (err: unknown) => {
        if (!this.#stopping.aborted) this.#log.error({ err }, 'jobs cannot be done')
      },
    )
  }
  async stop(): Promise<void> {
    await this.#starting
    await this.#boss?.stop({ graceful: true, timeout: stopMs }).catch(() => {})
    await this.#connections?.close()
  }

  async #open(connections: Connections): Promise<void> {
    const { PgBoss } = await import('pg-boss')
    const boss = new PgBoss({
      // The server shows whose statement it is.
      db: { executeSql: (text, values) => connections.query(`/* jobs */ ${text}`, values) },
      schema: 'pgboss',
      registerInstance: false,
    })
    boss.on('error', (err: Error) => this.#log.warn({ err }, 'jobs wait for the database'))
    try {
      await boss.start()
      for (const [name, job] of this.#jobs) await this.#serve(boss, name, job)
    } catch (error) {
      await boss.stop({ graceful: false }).catch(() => {})
      throw error
    }
    this.#boss = boss
  }
  async #serve(boss: PgBoss, name: string, { cron, work }: Job): Promise<void> {
    // Exclusive: one waits or is under way, on all processes together.
    const kept = { retryLimit: 5, retryDelay: 10, retryBackoff: true, heartbeatSeconds, expireInSeconds }
    await boss.createQueue(name, { policy: 'exclusive', ...kept })
    await boss.schedule(name, cron, {}, { tz: 'UTC' })
    const worker = await boss.work(name, { pollingIntervalSeconds: askSeconds }, async ([job]) => {
      try {
        await work(AbortSignal.any([this.#stopping, job!.signal]))
      } catch (err) {
        this.#log.warn({ err, job: name }, 'a job failed; it is tried again')
        throw err
      }
    })
    this.#workers.set(name, worker)
  }
}
