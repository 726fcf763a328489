import { appError } from '#kernel'

const away = appError('unavailable', 503, 'The shared state of this service does not answer; try again shortly.')
const full = appError('unavailable', 503, 'Too many requests are being remembered; try again shortly.')
const forgot = appError('unavailable', 503, 'This was made before the memory of this service began; make it anew.')

export const storeAway = (cause: unknown) => away({ retryable: true, cause })
export const storeFull = () => full({ retryable: true })
export const storeForgot = () => forgot({ retryable: true })
