import type { FastifyBaseLogger } from 'fastify'
import type { ConnectionOptions, PgBoss } from 'pg-boss'
import { Gauge } from 'prom-client'
import { definePlugin } from '#kernel'
import { type Connections, Database, type Statement } from '#contracts/database'
import { Jobs, type Wake, type WakeUps } from '#contracts/jobs'
import { type ErasedPart, TenantData } from '#contracts/retention'
import { retry } from '#kit'
import { Taker } from './taker.ts'

/** Scheduled jobs and wake-ups that survive the death of any process. They are stored in PostgreSQL by pg-boss. */
export default definePlugin({
  name: 'jobs',
  requires: { database: Database },
  provides: { jobs: Jobs, data: TenantData },
  async setup({ deps, log, loads, metrics, stopping, onStart, onStop }) {
    const queue = new JobQueue(deps.database, log, stopping)
    if (!deps.database.absent) {
      // The start of the process does not wait for this import.
      loads(() => import('pg-boss'))
      onStart(async () => queue.start())
      new Gauge({
        name: 'agent_orc_jobs_up',
        help: '1 once this process takes jobs and wake-ups: a second after its boot, or when the database is there.',
        registers: [metrics],
        collect() {
          this.set(queue.up ? 1 : 0)
        },
      })
    }
    onStop(() => queue.stop())
    return { jobs: queue, data: deps.database.absent ? {} : { jobs: { erase: (id: string) => queue.erase(id) } } }
  },
})

/** Connections for pg-boss, besides one for each kind of wake-up. Few are enough, since its statements are small and none waits long for another. */
const connections = 2
/** A job goes to another process when its own process has sent no heartbeat for this time. */
const heartbeatSeconds = 30
/** The longest time that one job may take. The next job does the rest. */
const expireInSeconds = 12 * 3_600
/** How often each process looks for jobs that other processes asked for. Its own jobs begin at once. */
const askSeconds = 15
const stopMs = 5_000
/** pg-boss starts this many milliseconds after the boot, which its statements would slow down, or with the first job that is asked for or written. */
const startAfterMs = 1_000
/** How often pg-boss looks for jobs whose process has died. */
const superviseSeconds = 15

const erasedAtOnce = 1_000
const eraseSome = {
  text: `DELETE FROM pgboss.job WHERE (name, id) IN (SELECT name, id FROM pgboss.job WHERE group_id = $1 LIMIT ${erasedAtOnce}) RETURNING 1`,
}

interface Job {
  readonly cron: string
  readonly work: (signal: AbortSignal) => Promise<void>
}

interface Waking {
  readonly name: string
  readonly work: Parameters<Jobs['wakeUps']>[1]
}

/** Jobs on pg-boss, in the schema `pgboss`. The boot of the process does not wait for pg-boss, which starts when the database is reachable. */
class JobQueue implements Jobs {
  readonly #database: Database
  readonly #log: FastifyBaseLogger
  readonly #stopping: AbortSignal
  readonly #jobs = new Map<string, Job>()
  readonly #wakings: Waking[] = []
  /** Ids of the pg-boss workers of this process, by job. */
  readonly #workers = new Map<string, string>()
  /** Those who take wake-ups in this process, by kind. */
  readonly #takers = new Map<string, Taker>()
  #connections: Connections | undefined
  #boss: PgBoss | undefined
  #timer: NodeJS.Timeout | undefined
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
    await this.#begun()
    // If no process takes the job now, it runs at its scheduled time.
    await this.#boss?.send(name, {})
    const worker = this.#workers.get(name)
    if (worker !== undefined) this.#boss?.notifyWorker(worker)
  }

  wakeUps(name: string, work: Waking['work']): WakeUps {
    this.#wakings.push({ name, work })
    // pg-boss always writes the same SQL text for one queue, so each statement is prepared once under a name.
    const writtenBy = async (what: string, write: (boss: PgBoss, options: ConnectionOptions) => Promise<unknown>) => {
      const made: Statement[] = []
      await this.#begun()
      const executeSql = async (text: string, values: unknown[] = []) => {
        made.push({ name: `${what}-${name}`, text, values })
        // The statement has not run yet, so its real result is unknown.
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

  /** Deletes wake-ups of a tenant, whenever they are due. One that is under way loses its row, and is not repeated. */
  async erase(tenantId: string): Promise<ErasedPart> {
    const [gone] = await this.#database.systemBatch<[object[]]>([{ ...eraseSome, values: [tenantId] }])
    return { deleted: gone.length, more: gone.length === erasedAtOnce }
  }

  get up(): boolean {
    return this.#boss !== undefined && this.#connections !== undefined
  }
  start(): void {
    if (this.#jobs.size === 0 && this.#wakings.length === 0) return
    this.#connections = this.#database.connections(connections + this.#wakings.length)
    this.#timer = setTimeout(() => void this.#begun(), startAfterMs).unref()
  }
  async stop(): Promise<void> {
    clearTimeout(this.#timer)
    await this.#starting
    await Promise.all([...this.#takers.values()].map((taker) => taker.stop(stopMs)))
    await this.#boss?.stop({ graceful: true, timeout: stopMs }).catch(() => {})
    const connections = this.#connections
    this.#connections = undefined
    await connections?.close()
  }

  /** Resolves when pg-boss has started. There is nothing to start before `start`, in a role without jobs, and after `stop`. */
  #begun(): Promise<void> | undefined {
    const connections = this.#connections
    if (!connections) return this.#starting
    return (this.#starting ??= retry(() => this.#open(connections), {
      firstMs: 500,
      longestMs: 10_000,
      // What a process writes in its last moments is written, too.
      stopping: this.#stopping,
    }).catch((err: unknown) => {
      if (!this.#stopping.aborted) this.#log.error({ err }, 'jobs cannot run')
    }))
  }
  async #open(connections: Connections): Promise<void> {
    const { PgBoss } = await import('pg-boss')
    const boss = new PgBoss({
      // The comment shows in the statistics of PostgreSQL whose statement it is.
      db: {
        executeSql: (text, values) => connections.query(`/* jobs */ ${text}`, values),
        // pg-boss has one channel, on which it names the queue.
        listen: async (channel) => ({
          close: await this.#database.listen(channel, (queue) => this.#takers.get(queue)?.look()),
        }),
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
      await Promise.all([...this.#takers.values()].map((taker) => taker.stop(0)))
      this.#takers.clear()
      await boss.stop({ graceful: false }).catch(() => {})
      throw error
    }
    this.#boss = boss
  }
  async #serve(boss: PgBoss, name: string, { cron, work }: Job): Promise<void> {
    // Policy `exclusive`: all processes together have at most one job of a name, waiting or running.
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
    // Policy `short`: at most one wake-up of a key waits, even while others run. A change during a run is thus looked at again.
    const kept = { retryLimit: 1_000, retryDelay: 1, retryBackoff: true, retryDelayMax: 60, heartbeatSeconds }
    await boss.createQueue(name, { policy: 'short', notify: true, deleteAfterSeconds: 60, ...kept })
    this.#takers.set(name, new Taker({ boss, name, work, heartbeatSeconds, log: this.#log }))
  }
}

const insertOf = ({ tenantId, what, key, afterMs = 0, id }: Wake) => ({
  ...(id === undefined ? {} : { id }),
  data: what,
  singletonKey: key,
  group: { id: tenantId },
  // As an interval, so that the clock of the database counts.
  ...(afterMs > 0 ? { startAfter: `${afterMs / 1_000} seconds` } : {}),
})
