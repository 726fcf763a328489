import { errorTable, isAppError } from '#kernel'

/** Errors of sandboxes, their workers and their egress. */
export const sandboxErrors = errorTable('sandboxes', {
  noSandboxSubstrate: { status: 503, about: 'This runner does not have the sandbox provider that the profile names.' },
  sandboxStartFailed: { status: 503, retry: true, message: 'The sandbox could not be started.' },
  sandboxUnreachable: { status: 503, retry: 'later', message: 'The sandbox provider does not answer.' },
  sessionShutdown: { status: 409, message: 'The session was shut down.' },
  runnerStopping: { status: 503, retry: 'later', message: 'The runner is shutting down.' },

  /** Specification 7: a runner without a runtime for dynamic workers answers each of their callbacks with this error. */
  dynamicWorkersUnavailable: {
    status: 503,
    message: 'This runner starts no sandbox workers: no sandbox provider is configured.',
  },
  workerTokenUnavailable: {
    status: 503,
    message:
      'Tokens for workers cannot be issued: set AGENT_ORC_WORKER_SIGNING_KEY_CURRENT (base64 of at least 32 random bytes) and restart.',
  },
  workerTokenFailed: {
    status: 503,
    message: 'No token could be issued for the worker: check AGENT_ORC_WORKER_SIGNING_KEY_CURRENT of this runner.',
  },
  unsupportedWorkerProtocol: { status: 400, message: 'Send X-Agent-Orc-Worker-Protocol: 1.' },
  pollSuperseded: { status: 409, message: 'A newer poll of this worker took the place of this one.' },
  unknownRun: { status: 404, message: 'This run is over, or its events were already taken.' },
  unknownCall: { status: 404, message: 'No run waits for this tool call.' },
  noState: { status: 404, message: 'This runner has no state of the session.' },

  // The files of the VirtualFS in a sandbox.
  noVfs: { status: 404, message: 'The session of this worker does not use the VirtualFS, or this runner has none.' },
  fileTooLarge: { status: 413, message: 'A file that a sandbox sends to the VirtualFS may have at most 16 MiB.' },
  lengthRequired: { status: 411, message: 'Send Content-Length with a file.' },
  tooManyFileRequests: {
    status: 429,
    retry: true,
    message: 'A worker may have at most 8 requests for files at once; repeat this one when another has ended.',
  },

  // How a run ends when its events do not arrive. The first two errors are the same as for a static sidecar.
  /** Nothing of the run was executed, so the run may be retried. */
  sidecarUnreachable: { status: 503, retry: true, message: 'The sandbox worker cannot be reached.' },
  sidecarLost: { status: 502, retry: true, message: 'The connection to the sandbox worker was lost.' },
  eventUploadTooLarge: { status: 413, message: 'The events of a run may have at most 256 MiB.' },
  eventUploadTimeout: { status: 408, message: 'The events of a run may take at most 4 hours.' },
  invalidEvents: { status: 400, message: 'A line of events may have at most 4 MiB.' },

  // A worker refuses a run with an error as its only event. The runner uses the same name when it refuses before it starts a sandbox.
  sessionBusy: { status: 409, retry: 'later', message: 'A run of this session is still running.' },
  /** The conductor reacts by sending its own copy of the conversation. */
  sessionStateMissing: { status: 409, message: 'The conversation of the session is not here.' },

  // Requests from a sandbox through the runner.
  callerLeft: { status: 400, message: 'The caller left before there was an answer.' },
  unknownModelProvider: {
    status: 404,
    message: 'This runner has neither a key nor an address for a model provider with this name.',
  },
  unknownModelCall: { status: 404, message: 'Workers may only call and list models.' },
  modelNotAllowed: { status: 403, about: 'Workers may only call the model of the profile of their run.' },
  /** Each model call is charged to a run, so code in a sandbox may not call models outside of one. */
  noRunUnderWay: {
    status: 409,
    message: 'Models, MCP servers and hosts can only be called during a run, and no run is running.',
  },
  modelCallInBackground: {
    status: 403,
    message: 'A model call in the background could not be measured: leave out `background`, or set it to false.',
  },
  runBudgetSpent: {
    status: 403,
    message: 'The run has spent its budget (limits.maxCostCents of its profile), so further model calls are refused.',
  },
  tooManyModelCalls: {
    status: 429,
    retry: true,
    message:
      'A run may have at most 4 model calls at once, and fewer while those under way may spend the rest of its budget; repeat this one when another has ended.',
  },
  tooManyModelLists: {
    status: 429,
    retry: true,
    message: 'A worker may ask for models at most 16 times at once; repeat this request when another has ended.',
  },
  modelServerUnreachable: { status: 502, retry: 'later', message: 'The model server cannot be reached.' },
  modelKeyRefused: { status: 502, message: "The model server does not accept the runner's key." },
  unknownMcpServer: { status: 404, message: 'The running run has no MCP server with this name.' },
  mcpRequestTooLarge: {
    status: 413,
    message: 'A request to an MCP server of which a run may call only some tools may have at most 1 MiB.',
  },
  tooManyMcpRequests: {
    status: 429,
    retry: true,
    message:
      'A worker may have at most 32 requests to an MCP server at once, and those to all of them at most 4 MiB together; repeat this one when another has been answered.',
  },
  toolNotAllowed: { status: 403, message: 'The running run may not call this tool of the MCP server.' },
  mcpServerUnreachable: { status: 502, retry: 'later', message: 'The MCP server cannot be reached.' },
  mcpServerRefused: { status: 502, message: 'The MCP server does not accept its credentials.' },
  bodyTooLarge: { status: 413, message: 'A request from a sandbox may have at most 32 MiB.' },

  // The hosts that a profile allows for its sandbox.
  egressKeyRefused: {
    status: 401,
    message:
      'Send the key of the running run, AGENT_ORC_EGRESS_KEY in the environment of its tools. It ends with the run, and only profiles with egress have one.',
  },
  proxyKeyRefused: {
    status: 407,
    message:
      "Use the proxy URL in http_proxy of the tool's environment, with its key. The key ends with the run, and only profiles with egress have one.",
  },
  noTunnels: {
    status: 405,
    message: 'Use http:// in place of https://: the runner speaks TLS with the host, and opens no tunnels.',
  },
  noWebSockets: {
    status: 501,
    message:
      'The runner does not support WebSockets: use the HTTP interface of the host, which may stream its answers.',
  },
  invalidTarget: { status: 400, message: 'The request has no address of a host: use http://<host>/<path>.' },
  egressNotAllowed: {
    status: 403,
    about: 'The field `egress` of the profile does not allow this; the sentence says what is missing.',
  },
  egressAddressNotAllowed: {
    status: 403,
    about: 'The host is in a private network, and the operator did not allow that (`ownHosts` of the plugin egress).',
  },
  tooManyEgressRequests: {
    status: 429,
    retry: true,
    message: 'A sandbox may have at most 16 requests to hosts at once; repeat this one when another has ended.',
  },
  egressHostUnreachable: {
    status: 502,
    retry: 'later',
    about: 'The host does not answer, or its certificate is not trusted.',
  },
  egressTooLate: {
    status: 504,
    retry: 'later',
    message: 'The host took too long: a request may take at most ten minutes.',
  },
  egressAnswerTooLarge: { status: 502, message: 'An answer to a sandbox may have at most 64 MiB.' },
  egressAnswerEncoded: {
    status: 502,
    message:
      'The host compressed its answer although the request forbade it, so the answer cannot be searched for secrets.',
  },
})

/** Errors on which a caller can act keep their names. Any other error becomes a failed start, with the sentence of the error if it has one. */
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
  return sandboxErrors.sandboxStartFailed({
    cause,
    ...(sentence === undefined ? {} : { message: `The sandbox could not be started: ${sentence}` }),
  })
}

export const isStartFailure = (error: unknown): boolean => isAppError(error) && error.code === 'sandbox_start_failed'
export const isGone = (error: unknown): boolean => isAppError(error) && error.code === 'sandbox_gone'
