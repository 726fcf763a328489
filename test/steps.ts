// What a step of the event loop may take, on the machine that the test runs on.

/** No request may keep everybody else of its process waiting for longer, in milliseconds of a processor like the one below. */
const longestStepMs = 50
/** What the work below takes where the bound was set. */
const referenceMs = 4

const document = Array.from({ length: 2_000 }, (_, i) => ({ id: `item-${i}`, n: i, tags: ['a', 'b', 'c'] }))

/** How slow the processor is just now: 1 where the bound was set, or on a faster one. It takes some milliseconds to say. */
export function slowness(): number {
  const work = (): unknown => JSON.parse(JSON.stringify(document))
  // After a pause the first ones find cold caches.
  for (let i = 0; i < 3; i++) work()
  const since = process.threadCpuUsage()
  for (let i = 0; i < 6; i++) work()
  const { user, system } = process.threadCpuUsage(since)
  return Math.max(1, (user + system) / 1_000 / referenceMs)
}

/** The bound in milliseconds, by the middle one of some measurements of slowness: a processor that is shared is slower now and then. */
export function longestStep(measured: readonly number[]): number {
  const sorted = measured.toSorted((a, b) => a - b)
  return longestStepMs * (sorted[sorted.length >> 1] ?? 1)
}
