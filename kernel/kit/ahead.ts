import { ahead } from './rate-limit.ts'

/** Milliseconds. While somebody waits for a turn, the event loop is looked at so often, and judged after so many looks. */
const lookEveryMs = 10
const looksOfJudgement = 10
/** The process is short of time while the loop is later than this on average, in milliseconds. */
const shortMs = 0.5
/** How much of what was before still counts at each judgement: half a second of it. */
const fading = 0.8
/** What each judgement changes: a burst must not last for seconds, and what it waits for must not return as another one. */
const less = 0.87
const more = 1.03
/** Nobody looks any more when nobody has waited for so many judgements. */
const restAfter = 100
/** Those with about as many turns as the one with the most, up to so many times fewer, give way together to all others. */
const unevenly = 1.2
/** What each judgement takes from it: it may do far less than its limits allow, and is felt until they are below that. */
const taken = 0.7
/** What each judgement gives back: by more of it they would be in the way of others most of the time. */
const given = 1.01
/** No part is smaller: from there the way back takes three quarters of a minute. */
const leastPart = 1 / 100
/** A tenant that has had no turn for so long is not there, in milliseconds. */
const thereForMs = 60_000

/** Looks at an event loop: `looked` hears how late each look was, in milliseconds. */
export interface LoopLooks {
  start(looked: (lateMs: number) => void): void
  stop(): void
}

/**
 * How far ahead of the average of its limits a tenant may be. Three times; and less and less while this process is short of time, down to the average
 * itself, so whoever does all that its limits allow gets it spread over the minute when others would feel it. If that is not enough, those who take
 * the most turns here give way to the other tenants of the last minute: they have ever fewer than their limits say, down to what they have in any
 * case. A tenant that is alone never does. Costs next to nothing while no tenant waits for its turn and only one has any.
 */
export class Ahead {
  readonly #looks: LoopLooks
  #factor: number = ahead.factor
  #lateMs = 0
  #latelyMs = 0
  #looked = 0
  /** Judgements since somebody waited; undefined: nobody looks. */
  #since: number | undefined
  /** The turns of each tenant, of which older ones count less. */
  readonly #turns = new Map<string, { lately: number; last: number }>()
  /** Those who give way: the part of their limits that they have. */
  readonly #parts = new Map<string, number>()

  constructor(looks: LoopLooks) {
    this.#looks = looks
  }

  /** Of all tenants but those who give way: from 1 to 3. */
  get factor(): number {
    return this.#factor
  }
  /** How many tenants give way to others. */
  get givingWay(): number {
    return this.#parts.size
  }
  /** How much of a limit a tenant has now. `least`: what it has in any case, unless the limit is lower. */
  rateOf(tenantId: string, limit: number, least: number): number {
    const part = this.#parts.get(tenantId)
    return part === undefined ? limit * this.#factor : Math.max(limit * part, Math.min(limit, least) * this.#factor)
  }
  /** Somebody waits for its turn, so it matters whether the process is short of time. */
  waits(): void {
    if (this.#since === undefined) this.#looks.start((lateMs) => this.#look(lateMs))
    this.#since = 0
  }
  /** The process works for a tenant. Two of them may be in each other's way. */
  works(tenantId: string, turns = 1): void {
    const mine = this.#turns.get(tenantId) ?? { lately: 0, last: 0 }
    // Nobody was there whom its earlier turns could have been in the way of.
    if (this.#since === undefined) mine.lately = 0
    mine.lately += turns
    mine.last = performance.now()
    this.#turns.set(tenantId, mine)
    if (this.#turns.size > 1) this.waits()
  }
  stop(): void {
    this.#looks.stop()
    this.#since = undefined
  }

  #look(lateMs: number): void {
    this.#lateMs += lateMs
    if (++this.#looked < looksOfJudgement) return
    this.#latelyMs = fading * this.#latelyMs + (1 - fading) * (this.#lateMs / looksOfJudgement)
    this.#lateMs = this.#looked = 0
    // Whoever gives way is slowed down only when nobody is ahead any more.
    const isShort = this.#latelyMs > shortMs
    this.#weigh(isShort && this.#factor === 1)
    this.#factor = isShort ? Math.max(1, this.#factor * less) : Math.min(ahead.factor, this.#factor * more)
    if (++this.#since! < restAfter || this.#factor < ahead.factor || this.#parts.size > 0) return
    this.stop()
    this.#latelyMs = 0
    this.#turns.clear()
  }

  /** Takes from those who have the most turns, if others are there, and gives back to the others. */
  #weigh(isCrowded: boolean): void {
    let [most, fewest] = [0, Infinity]
    for (const { lately } of this.#turns.values()) {
      most = Math.max(most, lately)
      fewest = Math.min(fewest, lately)
    }
    const many = most / unevenly
    const takes = isCrowded && fewest < many
    for (const [tenantId, part] of this.#parts) {
      if (takes && (this.#turns.get(tenantId)?.lately ?? 0) >= many) continue
      if (part * given < 1) this.#parts.set(tenantId, part * given)
      else this.#parts.delete(tenantId)
    }
    const gone = performance.now() - thereForMs
    for (const [tenantId, turns] of this.#turns) {
      if (takes && turns.lately >= many) {
        this.#parts.set(tenantId, Math.max(leastPart, (this.#parts.get(tenantId) ?? 1) * taken))
      }
      turns.lately *= fading
      if (turns.last < gone) this.#turns.delete(tenantId)
    }
  }
}

/** Looks at the event loop of this thread. */
export function loopLooks(): LoopLooks {
  let timer: NodeJS.Timeout | undefined
  return {
    start(looked) {
      let at = performance.now()
      timer = setInterval(() => {
        const now = performance.now()
        looked(Math.max(0, now - at - lookEveryMs))
        at = now
      }, lookEveryMs).unref()
    },
    stop: () => clearInterval(timer),
  }
}
