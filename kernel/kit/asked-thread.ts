import { Worker } from 'node:worker_threads'

interface ThreadOptions {
  /** The module of the thread: it answers each message with one, in their order. */
  readonly module: URL
  readonly name: string
  readonly resourceLimits: NonNullable<ConstructorParameters<typeof Worker>[1]>['resourceLimits'] & object
  /** How many questions of a tenant may wait. */
  readonly mostWaiting: number
  /** Why no more of a tenant's may wait. */
  tooMany(): Error
  /** What a question is rejected with over which the thread ended: it was stopped, or had no memory left. */
  died(why: 'stopped' | 'memory'): Error
}

interface Asked<Question, Answer> {
  readonly question: Question
  resolve(answer: Answer): void
  reject(error: unknown): void
}

/** The thread itself stops what takes long. It is stopped from here if it fails to, or if it cannot even start. */
const hungMs = 15_000

/**
 * A thread for what tenants can make slow: it starts with the first question, and answers one at a time; tenants take turns, so that
 * whoever asks for much waits for itself. One that dies over a question is replaced for the next.
 */
export class AskedThread<Question, Answer> {
  readonly #options: ThreadOptions
  #worker: Worker | undefined
  /** By tenant; whose turn it is stands first. */
  readonly #waiting = new Map<string, Asked<Question, Answer>[]>()
  #current: Asked<Question, Answer> | undefined
  #hung: NodeJS.Timeout | undefined
  #last: string | undefined
  constructor(options: ThreadOptions) {
    this.#options = options
  }

  /** Rejects with what the options say when too many wait, or when the thread died over it. */
  ask(tenantId: string, question: Question): Promise<Answer> {
    const line = this.#waiting.get(tenantId) ?? []
    if (line.length >= this.#options.mostWaiting) return Promise.reject(this.#options.tooMany())
    const { promise, resolve, reject } = Promise.withResolvers<Answer>()
    line.push({ question, resolve, reject })
    this.#waiting.set(tenantId, line)
    this.#next()
    return promise
  }

  #next(): void {
    if (this.#current || this.#waiting.size === 0) return
    const [first, second] = this.#waiting
    // A tenant that was just answered lets others go first.
    const [tenantId, line] = first![0] === this.#last && second ? second : first!
    this.#last = tenantId
    this.#current = line.shift()!
    this.#waiting.delete(tenantId)
    if (line.length > 0) this.#waiting.set(tenantId, line)
    const worker = (this.#worker ??= this.#start())
    worker.ref()
    this.#hung = setTimeout(() => void worker.terminate(), hungMs)
    worker.postMessage(this.#current.question)
  }
  #start(): Worker {
    const { module, name, resourceLimits } = this.#options
    // No preloads of this process, and nothing of its environment.
    const worker = new Worker(module, { name, resourceLimits, execArgv: [], env: {} })
    let failure: unknown
    worker.on('message', (answer: Answer) => this.#answered((asked) => asked.resolve(answer)))
    worker.on('error', (error) => (failure = error))
    worker.once('exit', () => {
      this.#worker = undefined
      this.#answered((asked) => asked.reject(this.#causeOf(failure)))
    })
    return worker
  }
  #answered(how: (asked: Asked<Question, Answer>) => void): void {
    const asked = this.#current
    clearTimeout(this.#hung)
    this.#worker?.unref()
    this.#current = undefined
    if (asked) how(asked)
    this.#next()
  }
  #causeOf(failure: unknown): unknown {
    if (failure === undefined) return this.#options.died('stopped')
    return (failure as { code?: unknown }).code === 'ERR_WORKER_OUT_OF_MEMORY' ? this.#options.died('memory') : failure
  }
}
