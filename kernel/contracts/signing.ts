import { slot } from '../plugin.ts'

/** `chat-gateway`: gateways to conductors. `runner`: conductors to runners, and runners to sidecars. */
export type SigningFamily = 'chat-gateway' | 'vfs' | 'runner'

/** One of the two keys of a family, as the key-id header names it. */
export type SigningKey = 'CURRENT' | 'PREVIOUS'

export interface SignedParts {
  /** Empty: the request is about no tenant, which only the family `runner` may say. */
  readonly tenant: string
  readonly method: string
  /** The request target exactly as sent, including the query. */
  readonly target: string
  readonly body: Uint8Array
}

export const signedHeaders = {
  signature: 'x-chat-gateway-signature',
  timestamp: 'x-chat-gateway-timestamp',
  nonce: 'x-chat-gateway-nonce',
  keyId: 'x-chat-gateway-key-id',
  tenant: 'x-chat-gateway-tenant',
} as const

/**
 * Headers of the family `runner`. The tenant is in the wire's own header, so that no second header can differ from it. The SHA-256 of the body is a
 * header, because bodies are large here and a signature is checked before the body is read.
 */
export const runnerHeaders = {
  signature: 'x-agent-orc-signature',
  timestamp: 'x-agent-orc-timestamp',
  nonce: 'x-agent-orc-nonce',
  keyId: 'x-agent-orc-key-id',
  tenant: 'x-tenant-id',
  digest: 'x-agent-orc-content-sha256',
} as const

/** Signs and verifies requests (AO-HMAC-SHA256-V1) with one family of keys. Specification 5.3. */
export interface Signer {
  /** True while a previous key still verifies, that is during a rotation. */
  readonly hasPreviousKey?: boolean
  /** Signs with the current key by default. `PREVIOUS` is for a peer that does not know the current key yet. */
  sign(parts: SignedParts, key?: SigningKey): Record<string, string>
  /**
   * Checks header form, clock skew (60 s), body size, the signature under CURRENT or PREVIOUS, then the nonce, in that order. Rejects with AppError
   * `unauthorized` (401), or with `unavailable` (503, retryable: sign anew) when the nonce store cannot be reached or its memory began after the
   * request was signed.
   */
  verify(
    headers: Readonly<Record<string, string | string[] | undefined>>,
    parts: Omit<SignedParts, 'tenant'>,
  ): Promise<{ tenant: string }>
}

/** Keyed by family. A family without a key in this role is absent. */
export const Signers = slot<Signer>('core.signers')
