import { appError } from '#kernel'

/** Nothing of the request was executed, so it may be sent again. */
export const sidecarUnreachable = appError('sidecar_unreachable', 503, 'The sidecar cannot be reached.')
export const sidecarLost = appError('sidecar_lost', 502, 'The connection to the sidecar was lost.')
export const sidecarRefused = appError('sidecar_refused', 502)
export const runtimeUnavailable = appError('runtime_unavailable', 503)
/** A sidecar need not have the state routes, but then a state given to it must not be lost in silence. Specification 4.23, rule 2. */
export const noStateRoutes = appError('sidecar_keeps_no_state', 502, 'The sidecar has no routes for state.')
export const stateTooLarge = appError('state_too_large', 500, "The session's state is larger than 64 MiB.")
