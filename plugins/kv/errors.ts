import { appError } from '#kernel'

const away = appError('unavailable', 503, 'The shared state of this service does not answer; try again shortly.')
const full = appError('unavailable', 503, 'Too many requests are being remembered; try again shortly.')

export const storeAway = (cause: unknown) => away({ retryable: true, cause })
export const storeFull = () => full({ retryable: true })
