import type { FastifyBaseLogger } from 'fastify'
import type { ConnectionOptions, PgBoss } from 'pg-boss'
import { definePlugin } from '#kernel'
import { type Connections, Database, type Statement } from '#contracts/database'
import { Jobs, type Wake, type WakeUps } from '#contracts/jobs'
import { retry } from '#kit'

/** Work by schedule that must be done whichever process dies, on pg-boss. */
export default definePlugin({
  name: 'jobs',
  requires: { database: Database },
  provides: { jobs: Jobs },
  async setup({ deps, log, loads, stopping, onStart, onStop }) {
    const queue = new JobQueue(deps.database, log, stopping)
    if (!deps.database.absent) {
      // The start does not wait for it.
      loads(() => import('pg-boss'))
      onStart(async () => queue.start())
    }
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
/** Wake-ups that a process takes at once, in batches, and of one tenant on all processes together: the others have room left. */
const taking = { localConcurrency: 4, batchSize: 10, groupConcurrency: 30 } as const
/** How often a process looks for those that are due later; of those that are due now it is notified. */
const lookSeconds = 5
/** How often jobs are looked for whose process has died. */
const superviseSeconds = 15

interface Job {
  readonly cron: string
  readonly work: (signal: AbortSignal) => Promise<void>
}

interface Waking {
  readonly name: string
  readonly work: Parameters<Jobs['wakeUps']>[1]
}

/** Jobs on pg-boss, in the schema `pgboss`. The boot does not wait for it, and it heals when the database comes back. */
class JobQueue implements Jobs {
  readonly #database: Database
  readonly #log: FastifyBaseLogger
  readonly #stopping: AbortSignal
  readonly #jobs = new Map<string, Job>()
  readonly #wakings: Waking[] = []
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

  wakeUps(name: string, work: Waking['work']): WakeUps {
    this.#wakings.push({ name, work })
    // Of one queue pg-boss writes one text for each, which is prepared once.
    const writtenBy = async (what: string, write: (boss: PgBoss, options: ConnectionOptions) => Promise<unknown>) => {
      const made: Statement[] = []
      await this.#starting
      const executeSql = async (text: string, values: unknown[] = []) => {
        made.push({ name: `${what}-${name}`, text, values })
        // What came of it nobody knows yet.
        return { rows: [{ count: 0 }] }
      }
      if (this.#boss) await write(this.#boss, { db: { executeSql } })
      return made
    }
    const statements = async (wakes: readonly Wake[]): Promise<readonly Statement[]> =>
      wakes.length === 0 ? [] : writtenBy('wake', (boss, options) => boss.insert(name, wakes.map(insertOf), options))
    return {
      statements,
      takenBack: async (ids) =>
        ids.length === 0 ? [] : writtenBy('take-back', (boss, options) => boss.deleteJob(name, [...ids], options)),
      send: async (wakes, tx) => {
        const made = await statements(wakes)
        if (tx) for (const one of made) await tx.query(one)
        else if (made.length > 0) await this.#database.systemBatch(made)
      },
    }
  }

  start(): void {
    if (this.#jobs.size === 0 && this.#wakings.length === 0) return
    const open = this.#database.connections(connections + this.#wakings.length)
    this.#connections = open
    this.#starting = retry(() => this.#open(open), { firstMs: 500, longestMs: 10_000, signal: this.#stopping }).catch(
      (err: unknown) => {
        if (!this.#stopping.aborted) this.#log.error({ err }, 'jobs cannot run')
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
      db: {
        executeSql: (text, values) => connections.query(`/* jobs */ ${text}`, values),
        listen: async (channel, heard) => ({ close: await this.#database.listen(channel, heard) }),
      },
      schema: 'pgboss',
      registerInstance: false,
      useListenNotify: this.#wakings.length > 0,
      superviseIntervalSeconds: superviseSeconds,
      monitorIntervalSeconds: superviseSeconds,
    })
    boss.on('error', (err: Error) => this.#log.warn({ err }, 'jobs wait for the database'))
    try {
      await boss.start()
      for (const [name, job] of this.#jobs) await this.#serve(boss, name, job)
      for (const waking of this.#wakings) await this.#take(boss, waking)
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
  async #take(boss: PgBoss, { name, work }: Waking): Promise<void> {
    // Short: of one key one waits, while others may be under way, so that what happens meanwhile is looked at again.
    const kept = { retryLimit: 1_000, retryDelay: 1, retryBackoff: true, retryDelayMax: 60, heartbeatSeconds }
    await boss.createQueue(name, { policy: 'short', notify: true, deleteAfterSeconds: 60, ...kept })
    const polling = { pollingIntervalSeconds: lookSeconds, notifyPollingIntervalSeconds: lookSeconds }
    await boss.work(name, { ...taking, ...polling, burstWhenBatchFull: true, perJobResults: true }, async (jobs) =>
      Promise.all(
        jobs.map(async ({ id, data, signal }) => {
          try {
            await work(data as Wake['what'], AbortSignal.any([this.#stopping, signal]))
            return { id, status: 'completed' as const }
          } catch (err) {
            this.#log.warn({ err, job: name }, 'a wake-up failed; it is repeated')
            return { id, status: 'failed' as const }
          }
        }),
      ),
    )
  }
}

const insertOf = ({ tenantId, what, key, afterMs = 0, id }: Wake) => ({
  ...(id === undefined ? {} : { id }),
  data: what,
  singletonKey: key,
  group: { id: tenantId },
  // As an interval, which the clock of the database counts.
  ...(afterMs > 0 ? { startAfter: `${afterMs / 1_000} seconds` } : {}),
})
