import type { SignedParts, Signer, SigningKey } from '#contracts/signing'
import type { Identity, Signature } from './peer-types.ts'

/** Callers that sign with a family of keys; without a signer the tenant's header is all. `tenantHeader` is that of the wire. */
export function signedBy(signer: Signer | undefined, tenantHeader: string): Identity {
  if (!signer) return { tenantHeader }
  // The key that a peer was last seen to know comes first: while keys are rotated it may not have been restarted yet.
  let known: SigningKey = 'CURRENT'
  const keys: readonly SigningKey[] = signer.hasPreviousKey ? ['CURRENT', 'PREVIOUS'] : ['CURRENT']
  const signatures = keys.map((key): Signature => ({
    sign: (request: SignedParts) => signer.sign(request, key),
    taken() {
      known = key
    },
  }))
  return { tenantHeader, signatures: () => (known === 'CURRENT' ? signatures : signatures.toReversed()) }
}
