import { appError } from '#kernel'

/** Also for another tenant's session: a caller cannot tell the two apart. */
export const unknownSession = appError('unknown_session', 404)
export const unknownProfile = appError('unknown_profile', 404)
export const badState = appError('invalid_request', 400, 'stateB64 is not base64.')
export const noState = appError('no_state', 404, 'The session has no state to export.')
export const exportFailed = appError('state_export_failed', 500, 'The sidecar did not give the state out.')
/** Of specification 7: a substrate that does not answer is a failure of the runner, whatever it calls it itself. */
export const leaseUnreadable = appError('upstream', 502, 'The substrate of the sandbox does not answer; try again.')
// The strings of specification 4.22.
export const noVfsSession = appError('no vfs session', 404)
export const noSandboxWorker = appError('no sandbox worker', 404)
