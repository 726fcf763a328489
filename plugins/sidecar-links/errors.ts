import { appError } from '#kernel'

/** Nothing of the request was executed, so it may be sent again. */
export const sidecarUnreachable = appError('sidecar_unreachable', 503, 'The sidecar cannot be reached.')
export const sidecarLost = appError('sidecar_lost', 502, 'The connection to the sidecar was lost.')
export const runtimeUnavailable = appError('runtime_unavailable', 503)
export const stateTooLarge = appError('state_too_large', 500, "The session's state is larger than 64 MiB.")
