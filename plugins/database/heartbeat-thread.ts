// The thread of `Database.heartbeat`: it only renews one row. It imports nothing else of ours, because each module costs memory
// and start time.
import { writeSync } from 'node:fs'
import { type MessagePort, parentPort, workerData } from 'node:worker_threads'
import pg from 'pg'

/** The start data of the thread. */
export interface Task {
  readonly dsn: string
  readonly renew: { readonly name?: string; readonly text: string }
  readonly everyMs: number
  readonly hungMs: number
}
/** The messages of the thread: every loss of the lease, and each change between renewing and failing. */
export type Heard = { readonly what: 'renewed' | 'lost' } | { readonly what: 'failed'; readonly why: string }

/** Renews the lease with the values of the newest pulse, until no pulse has come for too long. */
class Renewal {
  readonly #task: Task
  readonly #port: MessagePort
  /** Milliseconds to wait for an answer. A later answer is useless, and another connection may be quicker. */
  readonly #answerMs: number
  readonly #timer: NodeJS.Timeout
  #values: unknown[] | undefined
  #client: pg.Client | undefined
  #beating = false
  #ended = false
  /** Time since the last pulse, counted in beats instead of clock time: a process that was suspended as a whole was not hung. */
  #quietMs = 0
  #told: string | undefined

  constructor(task: Task, port: MessagePort) {
    this.#task = task
    this.#port = port
    this.#answerMs = Math.max(task.everyMs, 2_000)
    this.#timer = setInterval(() => this.#tick(), task.everyMs)
  }
  pulse(values: unknown[]): void {
    const first = this.#values === undefined
    this.#values = values
    this.#quietMs = 0
    if (first) void this.#beat()
  }
  end(): void {
    this.#ended = true
    if (!this.#beating) void this.#close()
  }
  get #hung(): boolean {
    return this.#quietMs > this.#task.hungMs
  }
  #tick(): void {
    const before = this.#hung
    this.#quietMs += this.#task.everyMs
    if (this.#hung && !before) {
      const msg = `this process has been hung for ${this.#task.hungMs} ms: its lease is not renewed any more, and its runs go to others`
      // The main thread, which logs, hangs, so this line is written directly.
      writeSync(2, `${JSON.stringify({ level: 50, time: new Date().toISOString(), msg })}\n`)
    }
    void this.#beat()
  }
  async #beat(): Promise<void> {
    if (this.#beating || this.#ended || this.#hung || this.#values === undefined) return
    this.#beating = true
    await this.#renew(this.#values)
    this.#beating = false
    if (this.#ended) await this.#close()
  }
  async #renew(values: unknown[]): Promise<void> {
    try {
      this.#client ??= await this.#connect()
      const { rowCount } = await this.#client.query({ ...this.#task.renew, values })
      if (rowCount) return this.#tell({ what: 'renewed' })
      // Renew nothing until the next pulse brings values.
      if (this.#values === values) this.#values = undefined
      this.#tell({ what: 'lost' })
    } catch (error) {
      void this.#client?.end().catch(() => {})
      this.#client = undefined
      this.#tell({ what: 'failed', why: (error as Error).message })
    }
  }
  async #connect(): Promise<pg.Client> {
    const client = new pg.Client({
      connectionString: this.#task.dsn,
      application_name: 'agent-orc heartbeat',
      keepAlive: true,
      connectionTimeoutMillis: this.#answerMs,
      query_timeout: this.#answerMs,
    })
    // A connection that breaks between two beats makes the next beat fail, which then opens another connection.
    client.on('error', () => {})
    try {
      await client.connect()
      return client
    } catch (error) {
      await client.end().catch(() => {})
      throw error
    }
  }
  #tell(heard: Heard): void {
    if (this.#told === heard.what && heard.what !== 'lost') return
    this.#told = heard.what
    this.#port.postMessage(heard)
  }
  async #close(): Promise<void> {
    clearInterval(this.#timer)
    await this.#client?.end().catch(() => {})
    this.#port.close()
  }
}

if (parentPort) {
  const renewal = new Renewal(workerData as Task, parentPort)
  parentPort.on('message', (given: unknown[] | 'end') => (given === 'end' ? renewal.end() : renewal.pulse(given)))
}
