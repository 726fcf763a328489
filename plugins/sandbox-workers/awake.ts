/** How long a sandbox was awake that no run has accounted for: runs account for their own time. */
export interface AwakeMeter {
  woke(): void
  slept(): void
  /** Awake and not accounted for, in ms. */
  readonly ms: number
  /** What there was has been told to somebody, or is his: counts from 0 again. */
  settle(): void
}

export function createAwakeMeter(now: () => number = Date.now): AwakeMeter {
  let since: number | undefined
  let before = 0
  const total = (): number => before + (since === undefined ? 0 : now() - since)
  return {
    woke() {
      since ??= now()
    },
    slept() {
      before = total()
      since = undefined
    },
    get ms() {
      return total()
    },
    settle() {
      before = 0
      if (since !== undefined) since = now()
    },
  }
}
