import type { StateBundle } from '#contracts/runtime'

/** The runner's copy of a worker's state. */
export interface StateCopy {
  readonly bundle: StateBundle | undefined
  readonly rev: number
  /** What the runner says wins over whatever a sandbox has on its disk. */
  set(bundle: StateBundle | undefined): void
  /** What the worker says. An older copy never takes the place of a newer one. */
  take(bundle: StateBundle | undefined, rev: number): void
  /** Calls back at the worker's next word about its state. Returns how to stop listening. */
  onTaken(listener: () => void): () => void
}

/** `rev` of the former worker's copy, where there is one. */
export function createStateCopy(rev = 0): StateCopy {
  let bundle: StateBundle | undefined
  const listeners = new Set<() => void>()
  return {
    get bundle() {
      return bundle
    },
    get rev() {
      return rev
    },
    set(given) {
      // Workers count from the copy that they started with. A time is above any count of a sandbox that outlived a runner.
      rev = Math.max(rev + 1, Date.now())
      bundle = given
    },
    take(given, at) {
      if (at >= rev) {
        rev = at
        bundle = given
      }
      for (const tell of listeners) tell()
    },
    onTaken(listener) {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
  }
}
