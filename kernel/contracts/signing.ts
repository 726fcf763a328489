import { slot } from '../plugin.ts'

/** `chat-gateway`: gateways to conductors. `runner`: conductors to runners, and runners to sidecars. */
export type SigningFamily = 'chat-gateway' | 'vfs' | 'runner'

/** One of the two keys of a family, as the key-id header names it. */
export type SigningKey = 'CURRENT' | 'PREVIOUS'

export interface SignedParts {
  /** '': about no tenant, which only the family `runner` may say. */
  readonly tenant: string
  readonly method: string
  /** The request-target exactly as sent, query included. */
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
 * Of the family `runner`. The tenant is the wire's own header, so that there is no second one to differ from it. The SHA-256 of the
 * body is a header, because bodies are large here: a signature is checked before any of the body is read.
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
  /** True while a previous key still verifies, i.e. during a rotation. */
  readonly hasPreviousKey?: boolean
  /** With the current key unless told otherwise; `PREVIOUS` is for a peer that does not know the current one yet. */
  sign(parts: SignedParts, key?: SigningKey): Record<string, string>
  /**
   * Checks header form, clock skew (60 s), body size, signature under CURRENT or PREVIOUS, then the nonce, in that order.
   * Rejects with AppError `unauthorized` (401) or, when the nonce store cannot be reached or its memory began after the request was
   * signed, `unavailable` (503, retryable: sign anew).
   */
  verify(
    headers: Readonly<Record<string, string | string[] | undefined>>,
    parts: Omit<SignedParts, 'tenant'>,
  ): Promise<{ tenant: string }>
}

/** Keyed by family. Absent when the role has no key for it. */
export const Signers = slot<Signer>('core.signers')
