import { ahead } from '#kit'

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

/** Looks at an event loop: `looked` hears how late each look was, in milliseconds. */
export interface LoopLooks {
  start(looked: (lateMs: number) => void): void
  stop(): void
}

/**
 * How many times the average of its limit a tenant may be ahead: three times, and less and less while this process is short of time, down to the
 * average itself. So whoever does all that its limits allow gets it spread over the minute when others would feel it, and nobody gets less than
 * its limits say. Costs nothing while no tenant waits for its turn.
 */
export class Ahead {
  readonly #looks: LoopLooks
  #factor: number = ahead.factor
  #lateMs = 0
  #latelyMs = 0
  #looked = 0
  /** Judgements since somebody waited; undefined: nobody looks. */
  #since: number | undefined

  constructor(looks: LoopLooks) {
    this.#looks = looks
  }

  get factor(): number {
    return this.#factor
  }
  /** Somebody waits for its turn, so it matters whether the process is short of time. */
  waits(): void {
    if (this.#since === undefined) this.#looks.start((lateMs) => this.#look(lateMs))
    this.#since = 0
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
    this.#factor =
      this.#latelyMs > shortMs ? Math.max(1, this.#factor * less) : Math.min(ahead.factor, this.#factor * more)
    if (++this.#since! < restAfter || this.#factor < ahead.factor) return
    this.stop()
    this.#latelyMs = 0
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
