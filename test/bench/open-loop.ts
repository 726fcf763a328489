/** Time as the open loop sees it, so that a test can make it stand still. */
export interface Clock {
  now(): number
  sleep(ms: number): Promise<unknown>
}

/**
 * Calls `send` at `perSecond`, evenly, by the clock: never later because an earlier one is not over. `send` is told when it
 * was due and measures from there, so a target that stalls is charged for everything that had to wait meanwhile, and a
 * client that stalls sends what it missed at once and is charged for it, too. Resolves when all that was sent is over.
 */
export async function openLoop(
  perSecond: number,
  durationMs: number,
  send: (due: number, n: number) => Promise<unknown>,
  clock: Clock,
): Promise<void> {
  const began = clock.now()
  const count = Math.round((durationMs / 1000) * perSecond)
  const underWay: Promise<unknown>[] = []
  for (let n = 0; n < count; n++) {
    const due = began + (n * 1000) / perSecond
    // A timer may fire a little early.
    for (let wait = due - clock.now(); wait > 0; wait = due - clock.now()) await clock.sleep(wait)
    underWay.push(send(due, n))
  }
  await Promise.all(underWay)
}
