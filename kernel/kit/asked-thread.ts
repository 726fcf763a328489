import { Worker } from 'node:worker_threads'

interface ThreadOptions {
  /** The thread's module. It sends one message when it is loaded, then answers each message with one message, in order. */
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
  readonly tenantId: string
  readonly question: Question
  resolve(answer: Answer): void
  reject(error: unknown): void
}

/** Milliseconds. The thread itself stops slow work. It is terminated after this time if it fails to do so, or cannot even start. */
const hungMs = 15_000

/** A thread, and the question that it answers now. */
interface Lane<Question, Answer> {
  worker?: Worker | undefined
  isLoaded?: boolean
  current?: Asked<Question, Answer> | undefined
  timers?: readonly NodeJS.Timeout[]
}

/** Milliseconds. When a question takes longer, those of other tenants go to a second thread. */
const patienceMs = 100

/**
 * Threads for work that tenants can make slow. The first one starts with the first question and answers one at a time. Tenants take turns, so that a
 * tenant with many questions delays only itself; a tenant has one question answered at a time, so that its slow ones leave the second thread to others.
 * A thread that dies during a question is replaced for the next one.
 */
export class AskedThread<Question, Answer> {
  readonly #options: ThreadOptions
  /** Waiting questions by tenant. The first tenant is next. */
  readonly #waiting = new Map<string, Asked<Question, Answer>[]>()
  readonly #first: Lane<Question, Answer> = {}
  readonly #second: Lane<Question, Answer> = {}
  #firstIsSlow = false
  #last: string | undefined
  constructor(options: ThreadOptions) {
    this.#options = options
  }

  /** Rejects with `tooMany` when too many questions wait, and with `died` when the thread died during the question. */
  ask(tenantId: string, question: Question): Promise<Answer> {
    const line = this.#waiting.get(tenantId) ?? []
    if (line.length >= this.#options.mostWaiting) return Promise.reject(this.#options.tooMany())
    const { promise, resolve, reject } = Promise.withResolvers<Answer>()
    line.push({ tenantId, question, resolve, reject })
    this.#waiting.set(tenantId, line)
    this.#next()
    return promise
  }

  #next(): void {
    if (!this.#first.current) this.#give(this.#first)
    // Nobody waits for the second thread to load: the first one may be free before.
    if (this.#firstIsSlow && this.#waiting.size > 0) this.#second.worker ??= this.#start(this.#second)
    if (this.#firstIsSlow && this.#second.isLoaded && !this.#second.current) this.#give(this.#second)
  }
  #give(lane: Lane<Question, Answer>): void {
    const tenantId = this.#nextTenant()
    if (tenantId === undefined) return
    const line = this.#waiting.get(tenantId)!
    const asked = line.shift()!
    this.#waiting.delete(tenantId)
    if (line.length > 0) this.#waiting.set(tenantId, line)
    this.#last = tenantId
    lane.current = asked
    const worker = (lane.worker ??= this.#start(lane))
    worker.ref()
    const hung = setTimeout(() => void worker.terminate(), hungMs)
    lane.timers = lane === this.#first ? [hung, setTimeout(() => this.#isSlow(), patienceMs)] : [hung]
    worker.postMessage(asked.question)
  }
  #isSlow(): void {
    this.#firstIsSlow = true
    this.#next()
  }
  /** The tenant that is next. One that was just answered lets others go first. */
  #nextTenant(): string | undefined {
    const now = [this.#first.current?.tenantId, this.#second.current?.tenantId]
    let last: string | undefined
    for (const tenantId of this.#waiting.keys()) {
      if (now.includes(tenantId)) continue
      if (tenantId !== this.#last) return tenantId
      last = tenantId
    }
    return last
  }
  #start(lane: Lane<Question, Answer>): Worker {
    const { module, name, resourceLimits } = this.#options
    // The thread gets no preloads of this process, and nothing of its environment.
    const worker = new Worker(module, { name, resourceLimits, execArgv: [], env: {} })
    let failure: unknown
    worker.on('message', (answer: Answer) => {
      if (lane.isLoaded) return this.#answered(lane, (asked) => asked.resolve(answer))
      lane.isLoaded = true
      this.#next()
    })
    // A thread without a question does not keep the process alive. A listener does, so this comes after it.
    worker.unref()
    worker.on('error', (error) => (failure = error))
    worker.once('exit', () => {
      lane.worker = undefined
      lane.isLoaded = false
      this.#answered(lane, (asked) => asked.reject(this.#causeOf(failure)))
    })
    return worker
  }
  #answered(lane: Lane<Question, Answer>, how: (asked: Asked<Question, Answer>) => void): void {
    const asked = lane.current
    for (const timer of lane.timers ?? []) clearTimeout(timer)
    lane.worker?.unref()
    lane.current = undefined
    if (lane === this.#first) this.#firstIsSlow = false
    if (asked) how(asked)
    this.#next()
  }
  #causeOf(failure: unknown): unknown {
    if (failure === undefined) return this.#options.died('stopped')
    return (failure as { code?: unknown }).code === 'ERR_WORKER_OUT_OF_MEMORY' ? this.#options.died('memory') : failure
  }
}
