import { type AppError, errorTable } from '#kernel'
import { RpcClosed, RpcRefused, RpcTimeout, RpcViolation } from './json-rpc.ts'
import type { TurnError } from './protocol.ts'

export const runtimeBErrors = errorTable('runtime_b', {
  runtimeNotInstalled: {
    status: 503,
    about: 'The package of the vendor is not installed here; the sentence says how to install it.',
  },
  unknownModel: { status: 400, about: 'The profile names a model that this runtime cannot run.' },
  unsupportedAttachment: { status: 400, about: 'The model does not accept attachments of this type.' },
  unsupportedLimit: {
    status: 400,
    about: 'The runtime does not support a limit of the profile; the sentence names it.',
  },
  invalidState: { status: 400, message: 'The body is not a state bundle of runtime_b.' },
  runtimeBusy: {
    status: 503,
    retry: true,
    message:
      'Too many runs of this tenant wait for this sidecar to execute them with runtime_b, or nothing is free for a delegated one.',
  },
  toolServerUnavailable: {
    status: 503,
    retry: true,
    message: "The session's tool server cannot be reached, or refuses its token.",
  },
  maxSteps: { status: 422, about: 'The run reached its limit of model calls before an answer.' },
  invalidOutput: { status: 422, about: 'The model gave no answer that matches the response format.' },
  /** A failure of the model server. The sentence says which failure. */
  modelError: { status: 502, retry: 'as-said', about: 'The model server failed; the sentence says why.' },
  /** A failure of Codex. The sentence says which failure. */
  runtimeError: { status: 502, retry: 'as-said', about: 'Codex failed; the sentence says why.' },
})

/** True for statuses of failures that may be temporary. */
const transient = (status: number): boolean => status >= 500 || status === 429 || status === 408

const words: Readonly<Record<string, { readonly message: string; readonly retryable: boolean }>> = {
  contextWindowExceeded: { message: 'The conversation is longer than the model takes.', retryable: false },
  usageLimitExceeded: { message: 'The account at the model server has used up its quota.', retryable: false },
  rateLimitExceeded: { message: 'The model server answered 429.', retryable: true },
  serverOverloaded: { message: 'The model server is overloaded.', retryable: true },
  internalServerError: { message: 'The model server answered with an internal error.', retryable: true },
  unauthorized: { message: 'The model server answered 401.', retryable: false },
  badRequest: { message: 'The model server refused the request.', retryable: false },
  cyberPolicy: { message: 'The model server refused the request by its policy.', retryable: false },
}

/** The error of a failed turn, with a sentence of ours: the vendor's may quote keys, prompts and addresses. */
export function turnFailure({ message, codexErrorInfo: info }: TurnError): AppError {
  const word = typeof info === 'string' ? info : Object.keys(info ?? {})[0]
  const known = word === undefined ? undefined : words[word]
  if (known) return runtimeBErrors.modelError(known)
  if (typeof info === 'object' && info !== null) {
    const status = Object.values(info)[0]?.httpStatusCode
    if (typeof status === 'number') {
      return runtimeBErrors.modelError({
        message: `The model server answered ${status}.`,
        retryable: transient(status),
      })
    }
    return runtimeBErrors.modelError({ message: 'The model server cannot be reached.', retryable: true })
  }
  // Only the vendor's message distinguishes these failures.
  if (/^stream disconnected before completion: (?:Transport error|stream closed|idle timeout)/i.test(message)) {
    return runtimeBErrors.modelError({ message: 'The connection to the model server broke.', retryable: true })
  }
  if (message.startsWith('stream disconnected before completion')) {
    return runtimeBErrors.modelError({
      message: 'The model server reported an error while it answered.',
      retryable: true,
    })
  }
  return runtimeBErrors.modelError({ message: `The model server refused the request${reason(message)}.` })
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

/** The error for a failure between this server and the process. Undefined for any other failure. */
export function rpcFailure(error: unknown): AppError | undefined {
  if (error instanceof RpcRefused) {
    return /required MCP servers failed/i.test(error.message)
      ? runtimeBErrors.toolServerUnavailable({ cause: error })
      : runtimeBErrors.runtimeError({ cause: error, message: 'Codex could not open the conversation.' })
  }
  if (error instanceof RpcTimeout)
    return runtimeBErrors.runtimeError({ cause: error, retryable: true, message: 'Codex does not answer.' })
  if (error instanceof RpcViolation) {
    return runtimeBErrors.runtimeError({ cause: error, message: 'Codex wrote something that is not its protocol.' })
  }
  if (error instanceof RpcClosed)
    return runtimeBErrors.runtimeError({ cause: error, retryable: true, message: 'Codex stopped.' })
  return undefined
}
