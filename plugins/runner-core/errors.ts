import { appError } from '#kernel'

/** Also the answer for another tenant's session: a caller cannot tell the two apart. */
export const unknownSession = appError('unknown_session', 404)
export const sessionBusy = appError('session_busy', 409, 'A run is under way in this session.')
export const attemptSuperseded = appError('attempt_superseded', 409, 'A later attempt of this run was begun.')
export const unknownProfile = appError('unknown_profile', 404)
export const invalidSessionId = appError('invalid session id', 400)
export const runnerFull = appError('runner_full', 503, 'Every session of this runner has a run under way.')
/** Another runner may be asked: nothing was begun here. */
export const runnerDraining = appError('runner_draining', 503, 'The runner is about to stop and takes nothing new.')
export const noSandboxSubstrate = appError('no_sandbox_substrate', 503, 'This runner has no sandboxes.')
export const toolNotAllowed = appError('tool_not_allowed', 403)

/** Why a run was ended here, as the code of its `error` event. */
export type EndReason = 'timeout' | 'cancelled' | 'runner_stopping' | 'session_shutdown' | 'sidecar_lost' | 'bad_event'

export const sentences: Readonly<Record<EndReason, string>> = {
  timeout: 'The run took longer than its limit.',
  cancelled: 'The run was cancelled.',
  runner_stopping: 'The runner is shutting down.',
  session_shutdown: 'The session was shut down.',
  sidecar_lost: 'The sidecar stopped before the run was over.',
  bad_event: 'The sidecar sent something that is not a run event.',
}
