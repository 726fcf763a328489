import { appError } from '#kernel'

// The strings of specification 4.7. Also the answer for another tenant's session: a caller cannot tell them apart.
export const noSandboxWorker = appError('no sandbox worker', 404, 'This session has no sandbox worker.')
export const noVfsSession = appError('no vfs session', 404, 'This session has no VirtualFS lease.')
export const runnerFailed = appError('upstream', 502, "The session's runner did not answer; try again.")
