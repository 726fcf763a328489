import { appError, isAppError } from '#kernel'

// Sandboxes.
export const noSandboxSubstrate = appError('no_sandbox_substrate', 503)
export const sandboxStartFailed = appError('sandbox_start_failed', 503, 'The sandbox could not be started.')
export const sandboxUnreachable = appError('sandbox_unreachable', 503, 'The sandbox provider does not answer.')
export const sessionShutDown = appError('session_shutdown', 409, 'The session was shut down.')
export const runnerStopping = appError('runner_stopping', 503, 'The runner is shutting down.')

// Workers that call back.
/** Specification 7: a runner without a runtime for dynamic workers answers so on every callback of one. */
export const dynamicWorkersUnavailable = appError(
  'dynamic_workers_unavailable',
  503,
  'This runner starts no sandbox workers: no sandbox provider is configured.',
)

// Specification 7: the text starts so, and says which case.
export const missingToken = appError('invalid or missing worker token: missing', 401)
export const malformedToken = appError('invalid or missing worker token: malformed', 401)
export const expiredToken = appError('invalid or missing worker token: expired', 401)
export const otherSession = appError('invalid or missing worker token: other session', 401)
export const otherTenant = appError('invalid or missing worker token: other tenant', 401)
/** The session has another worker now, or none. */
export const superseded = appError('invalid or missing worker token: superseded', 401)

export const workerTokenUnavailable = appError(
  'worker_token_unavailable',
  503,
  'Workers cannot be given tokens: set AGENT_ORC_WORKER_SIGNING_KEY_CURRENT (base64 of at least 32 random bytes) and restart.',
)
export const workerTokenFailed = appError(
  'worker_token_failed',
  503,
  'No token could be minted for the worker: check AGENT_ORC_WORKER_SIGNING_KEY_CURRENT of this runner.',
)

export const unsupportedProtocol = appError('unsupported_worker_protocol', 400, 'Send X-Agent-Orc-Worker-Protocol: 1.')
export const pollSuperseded = appError(
  'poll_superseded',
  409,
  'A newer poll of this worker took the place of this one.',
)
export const unknownRun = appError('unknown_run', 404, 'This run is over, or its events are taken already.')
export const unknownCall = appError('unknown_call', 404, 'Nobody waits for this tool call.')
export const noStateHere = appError('no_state', 404, 'There is no state of this session here.')
export const listenerStopping = appError('unavailable', 503, 'This server is stopping; try again.')

// How a run ends whose events do not come. The first two are as those of the link to a static sidecar.
/** Nothing of the run was executed, so it may be sent again. */
export const workerUnreachable = appError('sidecar_unreachable', 503, 'The sandbox worker cannot be reached.')
export const workerLost = appError('sidecar_lost', 502, 'The connection to the sandbox worker was lost.')
export const eventsTooLarge = appError('event_upload_too_large', 413, 'The events of a run may have at most 256 MiB.')
export const eventsTooLong = appError('event_upload_timeout', 408, 'The events of a run may take at most 4 hours.')
export const eventsCut = appError('invalid_events', 400, 'A line of events may have at most 4 MiB.')

// A worker refuses a run by its only event; the runner by the same name, before a sandbox is started in vain.
export const sessionBusy = appError('session_busy', 409, 'A run of this session is still under way.')
/** The conductor brings its copy of the conversation then. */
export const sessionStateMissing = appError(
  'session_state_missing',
  409,
  'The conversation of the session is not here.',
)

// The way out of a sandbox.
export const callerLeft = appError('caller_left', 400, 'The caller left before there was an answer.')
export const unknownModelProvider = appError(
  'unknown_model_provider',
  404,
  'This runner has neither key nor address of a model server of this name.',
)
export const unknownModelCall = appError('unknown_model_call', 404, 'Workers may only call models, and list them.')
/** A model call is charged to a run: code in a sandbox may not make calls of its own. */
export const noRunUnderWay = appError(
  'no_run_under_way',
  409,
  'Models are called in a run, and there is none under way.',
)
export const modelServerUnreachable = appError('model_server_unreachable', 502, 'The model server cannot be reached.')
export const modelKeyRefused = appError('model_key_refused', 502, "The model server does not take the runner's key.")
export const unknownMcpServer = appError('unknown_mcp_server', 404, 'The run under way has no MCP server of this name.')
export const mcpServerUnreachable = appError('mcp_server_unreachable', 502, 'The MCP server cannot be reached.')
export const mcpServerRefused = appError('mcp_server_refused', 502, 'The MCP server does not take its credentials.')
export const bodyTooLarge = appError('body_too_large', 413, 'A request to a model or MCP server may have 32 MiB.')

/** Errors that a caller can act on by their own names; any other is a start that failed, perhaps for a reason told in a sentence. */
const own: ReadonlySet<string> = new Set([
  'invalid_sandbox',
  'no_sandbox_substrate',
  'runner_stopping',
  'sandbox_start_failed',
  'session_shutdown',
  'worker_token_failed',
  'worker_token_unavailable',
])

export function asStartFailure(cause: unknown): Error {
  if (isAppError(cause) && own.has(cause.code)) return cause
  const sentence = isAppError(cause) ? cause.sentence : undefined
  return sandboxStartFailed({
    cause,
    retryable: true,
    ...(sentence === undefined ? {} : { message: `The sandbox could not be started: ${sentence}` }),
  })
}

export const isStartFailure = (error: unknown): boolean => isAppError(error) && error.code === 'sandbox_start_failed'
export const isGone = (error: unknown): boolean => isAppError(error) && error.code === 'sandbox_gone'
