/** The value of `work`, and how many turns of the event loop others had until it was there. */
export async function countingTurns<T>(work: () => Promise<T>): Promise<{ readonly value: T; readonly turns: number }> {
  let turns = 0
  let next = setImmediate(function count() {
    turns++
    next = setImmediate(count)
  })
  try {
    const value = await work()
    return { value, turns }
  } finally {
    clearImmediate(next)
  }
}
