/** Money that a run and those it delegates to may cost together, in cents. What has no known price costs nothing here. */
export interface Budget {
  /** Undefined: there is no limit. */
  left(): number | undefined
  /** What was spent is more than the limit. */
  isExceeded(): boolean
  /** Of a child run that is over. */
  spend(costCents: number | undefined): void
}

/** `own` is what the run itself has cost so far. */
export function createBudget(limits: readonly (number | undefined)[], own: () => number | undefined): Budget {
  const given = limits.filter((limit) => limit !== undefined)
  const limit = given.length === 0 ? undefined : Math.min(...given)
  let children = 0
  const spent = (): number => children + (own() ?? 0)
  return {
    left: () => (limit === undefined ? undefined : Math.max(0, limit - spent())),
    isExceeded: () => limit !== undefined && spent() > limit,
    spend(costCents = 0) {
      children += costCents
    },
  }
}
