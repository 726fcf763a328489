import { AppError, type AppErrorOptions, errorTable } from '#kernel'
import { signedHeaders, type SignedParts, type Signer, type SigningKey } from '#contracts/signing'
import { createPeers, type Identity, type Peers } from '#kit'

const connectMs = 2_000
/** A conductor creates or hydrates the session before it sends the response head of a new run. */
const headMs = 30_000
/** A silent stream over HTTP is opened anew after this: its peer may have vanished without closing it. */
const silentMs = 60_000

/** Connections to a conductor's signed internal listener. Every request is signed by itself, so a repeated one has a fresh nonce. */
export const conductorPeers = (signer: Signer, options: { readonly links?: boolean } = {}): Peers =>
  createPeers({
    ...options,
    connectMs,
    silentMs,
    timeoutMs: headMs,
    identity: signedBy(signer),
    faults: { lost: (how) => new ConductorLost(how), failed: unexpected },
  })

function signedBy(signer: Signer): Identity {
  // The key that the conductor was last seen to know comes first: while keys are rotated it may not have been restarted yet.
  let known: SigningKey = 'CURRENT'
  const keys: readonly SigningKey[] = signer.hasPreviousKey ? ['CURRENT', 'PREVIOUS'] : ['CURRENT']
  const signatures = keys.map((key) => ({
    sign: (request: SignedParts) => signer.sign(request, key),
    taken() {
      known = key
    },
  }))
  return {
    tenantHeader: signedHeaders.tenant,
    signatures: () => (known === 'CURRENT' ? signatures : signatures.toReversed()),
  }
}

export const conductorErrors = errorTable('conductor-client', {
  upstream: {
    status: 502,
    retry: 'as-said',
    message: 'The conductor cannot be reached.',
    about: 'The conductor cannot be reached, or failed; the sentence says which.',
  },
})
const keysMismatched =
  'The conductor refuses our signature: CHAT_GATEWAY_SIGNING_KEY_CURRENT must be the same on both services, and their clocks within a minute.'

/** The connection ended before its answer did, or there was none: the same question may be put again. */
export class ConductorLost extends AppError {
  /** The stream was only silent for long. */
  readonly silent: boolean
  constructor({ asked, cause }: { readonly asked: boolean; readonly cause: Error }) {
    const { code, status, message = code } = conductorErrors.upstream.row
    super(code, status, { message, retryable: !asked, cause })
    this.silent = (cause as { code?: unknown }).code === 'UND_ERR_BODY_TIMEOUT'
  }
}

/** The error for an answer that the wire does not allow. */
export const unexpected = ({ message, detail }: AppErrorOptions): AppError =>
  conductorErrors.upstream({ message: message ?? `The conductor answered ${String(detail?.['status'])}.` })

/** What an error of the conductor means to whoever dispatches runs. Its own failures and ours are all `upstream`. */
export function meaningOf(error: AppError): AppError {
  const { code, status, retryable } = error
  if (code === 'upstream') return error
  if (status === 401) return conductorErrors.upstream({ message: keysMismatched })
  if (status !== 429 && status < 500) return error
  return conductorErrors.upstream({ message: `The conductor answered ${status}.`, retryable, cause: error })
}
