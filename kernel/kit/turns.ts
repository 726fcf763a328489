import type { ModelFetch } from '#contracts/model'

/** Runs work with the same name one after the other, and work with different names concurrently. */
export class Turns {
  readonly #last = new Map<string, Promise<unknown>>()

  async take<T>(name: string, work: () => Promise<T>): Promise<T> {
    const before = this.#last.get(name) ?? Promise.resolve()
    const mine = before.then(work)
    const settled = mine.catch(() => {})
    this.#last.set(name, settled)
    try {
      return await mine
    } finally {
      if (this.#last.get(name) === settled) this.#last.delete(name)
    }
  }
}

interface SharesOptions {
  /** How much work is under way at once, of all tenants; any amount unless given. */
  readonly together?: number
  /** How much of one tenant is under way at once. */
  readonly each: number
  /** How much of one tenant may wait. */
  readonly mostWaiting: number
  /** Makes the error for work of a tenant of which so much waits already. */
  busy(): Error
}

/** What a tenant has under way, and what waits for its turn. */
interface Line {
  underWay: number
  readonly waiting: Set<() => void>
}

/**
 * Work of tenants with a share for each. Tenants take turns, and what a tenant has beyond its share waits for that tenant alone, so nobody is behind
 * all work of another one.
 */
export class Shares {
  readonly #options: SharesOptions
  /** The tenants that have work here. The one that began something last is at the end. */
  readonly #lines = new Map<string, Line>()
  #underWay = 0
  constructor(options: SharesOptions) {
    this.#options = options
  }

  async take<T>(tenantId: string, work: () => Promise<T>): Promise<T> {
    const leave = await this.enter(tenantId)
    try {
      return await work()
    } finally {
      leave()
    }
  }

  /** Waits for the tenant's turn. Resolves to what is called once, when the work is over. Rejects with the reason of `signal` when that aborts. */
  async enter(tenantId: string, signal?: AbortSignal): Promise<() => void> {
    signal?.throwIfAborted()
    const { each, mostWaiting, busy } = this.#options
    const line = this.#lines.get(tenantId) ?? { underWay: 0, waiting: new Set() }
    if (line.underWay + line.waiting.size >= each + mostWaiting) throw busy()
    this.#lines.set(tenantId, line)
    const { promise: turn, resolve: begin, reject } = Promise.withResolvers<void>()
    const giveUp = (): void => {
      line.waiting.delete(begin)
      this.#next()
      reject(signal!.reason)
    }
    line.waiting.add(begin)
    signal?.addEventListener('abort', giveUp, { once: true })
    this.#next()
    await turn
    signal?.removeEventListener('abort', giveUp)
    return () => this.#leave(line)
  }

  /** As `enter`, at once or not at all, and also beyond the tenant's share: for work that other work which is under way waits for. */
  enterNow(tenantId: string): () => void {
    const { together = Infinity, busy } = this.#options
    if (this.#underWay >= together) throw busy()
    const line = this.#lines.get(tenantId) ?? { underWay: 0, waiting: new Set() }
    this.#begin(tenantId, line)
    return () => this.#leave(line)
  }

  #begin(tenantId: string, line: Line): void {
    line.underWay++
    this.#underWay++
    this.#lines.delete(tenantId)
    this.#lines.set(tenantId, line)
  }

  #leave(line: Line): void {
    line.underWay--
    this.#underWay--
    this.#next()
  }

  /** Begins what may begin. A tenant is put to the end with what it begins, so this loop comes to it once more, after all others. */
  #next(): void {
    const { together = Infinity, each } = this.#options
    for (const [tenantId, line] of this.#lines) {
      const [begin] = line.waiting
      if (begin === undefined && line.underWay === 0) this.#lines.delete(tenantId)
      // Nobody else can begin, and there may be thousands of lines.
      if (this.#underWay >= together) break
      if (begin === undefined || line.underWay >= each) continue
      line.waiting.delete(begin)
      this.#begin(tenantId, line)
      begin()
    }
  }
}

/**
 * Slots for runs, each of which holds one for as long as its tenant likes. A tenant has at most half of them, which leaves some to others; what
 * waits is as much as a tenant may have under way by default. A run that another one waits for takes any free slot instead (`enterNow`), because
 * the slots of its tenant may all be held by runs that wait like that.
 */
export const runSlots = (slots: number, busy: () => Error): Shares =>
  new Shares({ together: slots, each: Math.ceil(slots / 2), mostWaiting: 500, busy })

/** A fetch whose large answers take turns: each part of a large answer waits behind small work. */
export const inTurns =
  (fetch: ModelFetch, smallBytes: number, turnOf: (part: Uint8Array) => Promise<void>): ModelFetch =>
  async (input, init) => {
    const answer = await fetch(input, init)
    const { status, statusText, headers, body } = answer
    if (!body || Number(headers.get('content-length') ?? Infinity) <= smallBytes) return answer
    let bytes = 0
    const paced = body.pipeThrough(
      new TransformStream<Uint8Array, Uint8Array>({
        async transform(part, controller) {
          bytes += part.length
          if (bytes > smallBytes) await turnOf(part)
          controller.enqueue(part)
        },
      }),
    )
    return new Response(paced, { status, statusText, headers })
  }
