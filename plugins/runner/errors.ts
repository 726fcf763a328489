import { appError } from '#kernel'
import type { EndingCode } from '#contracts/endings'
import type { FailingStop } from '#contracts/runner'

/** Also the answer for another tenant's session: a caller cannot tell the two apart. */
export const unknownSession = appError('unknown_session', 404)
export const unknownRun = appError('unknown_run', 404)
export const runGap = appError('run_gap', 410, 'What follows this event of the run is not kept any more.')
export const sessionBusy = appError('session_busy', 409, 'A run is under way in this session.')
export const attemptSuperseded = appError(
  'attempt_superseded',
  409,
  'A later attempt of this run was begun, or its session was taken over.',
)
export const unknownProfile = appError('unknown_profile', 404)
export const invalidSessionId = appError('invalid session id', 400)
export const runnerFull = appError('runner_full', 503, 'Every session of this runner has a run under way.')
/** Another runner may be asked: nothing was begun here. */
export const runnerDraining = appError('runner_draining', 503, 'The runner is about to stop and takes nothing new.')
export const noSandboxSubstrate = appError('no_sandbox_substrate', 503, 'This runner has no sandboxes.')
export const toolNotAllowed = appError('tool_not_allowed', 403)

/** Why a run was ended here, as the code of its `error` event. */
export type EndReason =
  | FailingStop
  | (EndingCode & ('cancelled' | 'runner_stopping' | 'session_shutdown' | 'sidecar_lost' | 'bad_event'))
