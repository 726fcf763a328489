import { appError, type AppError } from '#kernel'
import { RpcClosed, RpcRefused, RpcTimeout, RpcViolation } from './json-rpc.ts'
import type { TurnError } from './protocol.ts'

export const notInstalled = appError('runtime_not_installed', 503)
export const unknownModel = appError('unknown_model', 400)
export const unsupportedAttachment = appError('unsupported_attachment', 400)
export const unsupportedLimit = appError('unsupported_limit', 400)
export const runtimeBusy = appError(
  'runtime_busy',
  503,
  'This sidecar executes as many runs of runtime_b at once as it may.',
)
const toolServerUnavailable = appError(
  'tool_server_unavailable',
  503,
  "The session's tool server cannot be reached, or refuses its token.",
)
export const maxStepsReached = appError('max_steps', 422)
export const invalidOutput = appError('invalid_output', 422)
export const corruptState = appError('invalid_state', 400, 'The body is not a state bundle of runtime_b.')
/** What the model server did; the sentence says what. */
export const modelError = appError('model_error', 502)
/** What Codex did; the sentence says what. */
export const codexFailed = appError('runtime_error', 502)

/** Statuses that may be others in a moment. */
const transient = (status: number): boolean => status >= 500 || status === 429 || status === 408

const words: Readonly<Record<string, { readonly message: string; readonly retryable: boolean }>> = {
  contextWindowExceeded: { message: 'The conversation is longer than the model takes.', retryable: false },
  usageLimitExceeded: { message: 'The account at the model server has used up what it may.', retryable: false },
  rateLimitExceeded: { message: 'The model server answered 429.', retryable: true },
  serverOverloaded: { message: 'The model server is overloaded.', retryable: true },
  internalServerError: { message: 'The model server answered with a failure of its own.', retryable: true },
  unauthorized: { message: 'The model server answered 401.', retryable: false },
  badRequest: { message: 'The model server refused the request.', retryable: false },
  cyberPolicy: { message: 'The model server refused the request by its policy.', retryable: false },
}

/** Why a turn failed, with a sentence of ours: the vendor's may quote keys, prompts and addresses. */
export function turnFailure({ message, codexErrorInfo: info }: TurnError): AppError {
  const word = typeof info === 'string' ? info : Object.keys(info ?? {})[0]
  const known = word === undefined ? undefined : words[word]
  if (known) return modelError(known)
  if (typeof info === 'object' && info !== null) {
    const status = Object.values(info)[0]?.httpStatusCode
    if (typeof status === 'number') {
      return modelError({ message: `The model server answered ${status}.`, retryable: transient(status) })
    }
    return modelError({ message: 'The model server cannot be reached.', retryable: true })
  }
  // The vendor's own words for these are all there is.
  if (/^stream disconnected before completion: (?:Transport error|stream closed|idle timeout)/i.test(message)) {
    return modelError({ message: 'The connection to the model server broke.', retryable: true })
  }
  if (message.startsWith('stream disconnected before completion')) {
    return modelError({ message: 'The model server reported an error while it answered.', retryable: true })
  }
  return modelError({ message: `The model server refused the request${reason(message)}.` })
}

/** The code in an error body, e.g. ` (invalid_request_error)`: a plain word says what to fix and cannot carry a key. */
function reason(body: string): string {
  try {
    const { error } = JSON.parse(body) as { error?: { code?: unknown; type?: unknown } }
    const word = [error?.code, error?.type].find(
      (value) => typeof value === 'string' && /^[a-z][a-z_]{2,63}$/.test(value),
    )
    return word === undefined ? '' : ` (${String(word)})`
  } catch {
    return ''
  }
}

/** What went wrong between us and the process; undefined for anything else. */
export function rpcFailure(error: unknown): AppError | undefined {
  if (error instanceof RpcRefused) {
    return /required MCP servers failed/i.test(error.message)
      ? toolServerUnavailable({ cause: error, retryable: true })
      : codexFailed({ cause: error, message: 'Codex could not open the conversation.' })
  }
  if (error instanceof RpcTimeout)
    return codexFailed({ cause: error, retryable: true, message: 'Codex does not answer.' })
  if (error instanceof RpcViolation) {
    return codexFailed({ cause: error, message: 'Codex wrote something that is not its protocol.' })
  }
  if (error instanceof RpcClosed) return codexFailed({ cause: error, retryable: true, message: 'Codex stopped.' })
  return undefined
}
