/** Stops waiting when the signal aborts. The work itself is shared and continues for its other callers. */
export function unlessAborted<T>(shared: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const leave = (): void => reject(signal.reason as Error)
    if (signal.aborted) leave()
    else signal.addEventListener('abort', leave, { once: true })
    shared.then(resolve, reject).finally(() => signal.removeEventListener('abort', leave))
  })
}

/** Resolves when the work is done, or after `ms` at the latest. */
export async function atMost(ms: number, work: Promise<unknown>): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, ms)
  })
  await Promise.race([work.catch(() => {}), late])
  clearTimeout(timer)
}
