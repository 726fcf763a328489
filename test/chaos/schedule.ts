import type { Random } from './random.ts'

export const names = [
  'conductor-1',
  'conductor-2',
  'gateway-1',
  'gateway-2',
  'runner-1',
  'runner-2',
  'sidecar-1',
  'sidecar-2',
] as const
export type Name = (typeof names)[number]

/** The processes that use PostgreSQL and Redis. */
export const stateful: readonly Name[] = ['conductor-1', 'conductor-2', 'gateway-1', 'gateway-2']

export type Store = 'postgres' | 'redis'

export type Fault =
  /** kill -9, and a restart after `forMs`. */
  | { readonly kind: 'kill'; readonly on: Name }
  /** SIGTERM, and a restart `forMs` after it is gone. */
  | { readonly kind: 'term'; readonly on: Name }
  /** SIGSTOP, and SIGCONT after `forMs`. */
  | { readonly kind: 'freeze'; readonly on: Name }
  /** The way to a store is reset and refused, swallows everything, or is slow by `delayMs`. */
  | { readonly kind: 'cut' | 'hang'; readonly store: Store; readonly on: Name | 'all' }
  | { readonly kind: 'slow'; readonly store: Store; readonly on: Name | 'all'; readonly delayMs: number }
  /** The server itself is stopped, and started after `forMs`. */
  | { readonly kind: 'restart'; readonly store: Store }

export type Scheduled = Fault & {
  /** Milliseconds after the load began. */
  readonly atMs: number
  readonly forMs: number
}

/** Quiet time at the begin, so that there is something to break, and on average between two faults. */
const firstMs = 4_000
const meanGapMs = 6_000
/** How long a stopped process may take to end; nothing else may happen to it meanwhile. */
const restartMs = 8_000
const termMs = 30_000

/** The schedule of faults, the same for the same seed. No part has two faults at a time, but several parts may have one each. */
export function schedule(random: Random, forMs: number): Scheduled[] {
  const faults: Scheduled[] = []
  const busyUntil = new Map<string, number>()
  for (let atMs = firstMs; atMs < forMs; atMs += random.between(0.3, 1.7) * meanGapMs) {
    const [fault, lastsMs, recoveryMs] = draw(random)
    // A fault of a store is a fault of the way of all processes to it.
    const part = 'store' in fault ? fault.store : fault.on
    if ((busyUntil.get(part) ?? 0) > atMs || atMs + lastsMs > forMs) continue
    busyUntil.set(part, atMs + lastsMs + recoveryMs)
    faults.push({ ...fault, atMs: Math.round(atMs), forMs: Math.round(lastsMs) })
  }
  return faults
}

/** A fault, how long it lasts, and how long its part is left alone afterwards. */
function draw(random: Random): [Fault, number, number] {
  const what = random.next()
  if (what < 0.32) return [{ kind: 'kill', on: random.pick(names) }, random.between(100, 3_000), restartMs]
  if (what < 0.44) return [{ kind: 'term', on: random.pick(names) }, random.between(100, 2_000), termMs]
  if (what < 0.62) {
    // One in three is longer than a lease, so that a process wakes up as somebody who was declared dead.
    const ms = random.chance(0.33) ? random.between(14_000, 20_000) : random.between(500, 7_000)
    return [{ kind: 'freeze', on: random.pick(names) }, ms, restartMs]
  }
  const store = random.chance(0.6) ? 'postgres' : 'redis'
  if (what < 0.67) return [{ kind: 'restart', store }, random.between(100, 3_000), restartMs]
  const on = random.chance(0.4) ? 'all' : random.pick(stateful)
  if (what < 0.83) return [{ kind: 'cut', store, on }, random.between(1_000, 8_000), 2_000]
  if (what < 0.9) return [{ kind: 'hang', store, on }, random.between(1_000, 8_000), 2_000]
  const delayMs = Math.round(random.between(10, 150))
  return [{ kind: 'slow', store, on, delayMs }, random.between(2_000, 10_000), 1_000]
}

export function sentence(fault: Scheduled): string {
  const seconds = `${(fault.forMs / 1_000).toFixed(1)} s`
  if (fault.kind === 'restart') return `restart ${fault.store}, down for ${seconds}`
  if (!('store' in fault)) return `${fault.kind} ${fault.on} for ${seconds}`
  const slow = fault.kind === 'slow' ? ` by ${fault.delayMs} ms` : ''
  return `${fault.kind} ${fault.store} of ${fault.on}${slow} for ${seconds}`
}
