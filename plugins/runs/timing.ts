/** A profile without a limit of its own runs this long. */
export const defaultTimeoutSeconds = 600

/** True when the promise settled within `ms`. */
export const within = (promise: Promise<unknown>, ms: number): Promise<boolean> =>
  new Promise((resolve) => {
    const timer = setTimeout(() => resolve(false), ms)
    const settled = (): void => {
      clearTimeout(timer)
      resolve(true)
    }
    promise.then(settled, settled)
  })
