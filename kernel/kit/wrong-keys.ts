import { setTimeout as sleep } from 'node:timers/promises'
import { Type } from '@sinclair/typebox'
import { accessErrors } from '#contracts/access-errors'
import type { AppError } from '../contracts/errors.ts'
import { countedAs } from './addresses.ts'

/** The setting of plugins that check keys. */
export const wrongKeysPerMinute = Type.Integer({
  minimum: 1,
  maximum: 1_000_000,
  default: 300,
  description: 'Wrong keys that one address may try in a minute, at each process.',
})

const windowMs = 60_000
/** How many addresses are remembered. Further addresses replace the oldest. */
const mostAddresses = 10_000
/**
 * Milliseconds by which each further refusal of an address waits longer, and the longest wait; above a number of waiting refusals, further ones are
 * answered at once.
 */
const holdMs = 5
const longestHoldMs = 1_000
const mostHeld = 200
/** How many recently valid keys are remembered. */
const mostKeys = 10_000

interface Failures {
  count: number
  /** Attempts that were refused without a look-up. */
  refused: number
  /** When the failures are forgotten, by the clock. */
  readonly until: number
}

/**
 * Throttles guessing of keys. After too many wrong keys from an address within a minute, the address gets 429 for the rest of that minute, and
 * nothing is looked up for it; an IPv6 /64 counts as one address. Keys that recently worked in this process continue to work from there, so that a
 * bad neighbour behind a shared address does not affect others. Each process counts by itself.
 */
export class WrongKeys {
  readonly #mostPerMinute: number
  readonly #now: () => number
  readonly #failures = new Map<string, Failures>()
  readonly #good = new Set<string>()
  /** The most recent of them. */
  #newest: string | undefined
  /** Refusals that wait for their answer. */
  #held = 0

  /** `now`: milliseconds of a clock that never goes back. */
  constructor(mostPerMinute: number, now = () => performance.now()) {
    this.#mostPerMinute = mostPerMinute
    this.#now = now
  }

  /**
   * Rejects with 429 when the address has tried too many wrong keys, unless `known` says that this key is no attempt. Mostly returns
   * undefined. Further requests are answered with growing delays, up to a second: refusing thousands a second would affect all clients.
   */
  check(address: string, known: () => boolean): Promise<never> | undefined {
    // Shortcut: nearly always no address has failed.
    if (this.#failures.size === 0) return undefined
    const failures = this.#of(countedAs(address))
    if (!failures || failures.count < this.#mostPerMinute || known()) return undefined
    const seconds = Math.max(1, Math.ceil((failures.until - this.#now()) / 1_000))
    return this.#refuse(failures, accessErrors.tooManyWrongKeys({ headers: { 'retry-after': String(seconds) } }))
  }

  /** `key` is a text that represents the key, such as its hash. */
  isGood(key: string): boolean {
    return this.#good.has(key)
  }
  worked(key: string): void {
    if (key === this.#newest) return
    this.#newest = key
    // Re-add the key, so that the first key in the set is the one unused for longest.
    this.#good.delete(key)
    this.#good.add(key)
    if (this.#good.size > mostKeys) this.#good.delete(this.#good.values().next().value!)
  }
  failed(address: string, key?: string): void {
    if (key !== undefined) this.#good.delete(key)
    if (key === this.#newest) this.#newest = undefined
    const counted = countedAs(address)
    const failures = this.#of(counted)
    if (failures) failures.count++
    else this.#failures.set(counted, { count: 1, refused: 0, until: this.#now() + windowMs })
    if (this.#failures.size > mostAddresses) this.#failures.delete(this.#failures.keys().next().value!)
  }

  async #refuse(failures: Failures, error: AppError): Promise<never> {
    failures.refused++
    if (this.#held < mostHeld) {
      this.#held++
      await sleep(Math.min(longestHoldMs, failures.refused * holdMs), undefined, { ref: false })
      this.#held--
    }
    throw error
  }
  #of(counted: string): Failures | undefined {
    const failures = this.#failures.get(counted)
    if (!failures || failures.until > this.#now()) return failures
    this.#failures.delete(counted)
    return undefined
  }
}
