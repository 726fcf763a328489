import { Worker } from 'node:worker_threads'

interface ThreadOptions {
  /** The thread's module. It answers each message with one message, in order. */
  readonly module: URL
  readonly name: string
  readonly resourceLimits: NonNullable<ConstructorParameters<typeof Worker>[1]>['resourceLimits'] & object
  /** How many questions of a tenant may wait. */
  readonly mostWaiting: number
  /** Makes the error for a question when too many of the tenant's questions wait. */
  tooMany(): Error
  /** Makes the error for a question during which the thread ended: it was stopped, or ran out of memory. */
  died(why: 'stopped' | 'memory'): Error
}

interface Asked<Question, Answer> {
  readonly question: Question
  resolve(answer: Answer): void
  reject(error: unknown): void
}

/** Milliseconds. The thread itself stops slow work. It is terminated after this time if it fails to do so, or cannot even start. */
const hungMs = 15_000

/**
 * A thread for work that tenants can make slow. It starts with the first question and answers one at a time. Tenants take turns, so that a tenant
 * with many questions delays only itself. A thread that dies during a question is replaced for the next one.
 */
export class AskedThread<Question, Answer> {
  readonly #options: ThreadOptions
  #worker: Worker | undefined
  /** Waiting questions by tenant. The first tenant is next. */
  readonly #waiting = new Map<string, Asked<Question, Answer>[]>()
  #current: Asked<Question, Answer> | undefined
  #hung: NodeJS.Timeout | undefined
  #last: string | undefined
  constructor(options: ThreadOptions) {
    this.#options = options
  }

  /** Rejects with `tooMany` when too many questions wait, and with `died` when the thread died during the question. */
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
    // The thread gets no preloads of this process, and nothing of its environment.
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
