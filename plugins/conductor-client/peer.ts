import { signedHeaders, type SignedParts, type Signer, type SigningKey } from '#contracts/signing'
import { createPeers, type Identity, type Peers } from '#kit'
import { ConductorLost, unexpected } from './errors.ts'

const connectMs = 2_000
/** Creating a session, or hydrating one, comes before the head of a new run. */
const headMs = 30_000
/** A silent stream over HTTP is opened anew after this: a peer that vanished without a word is found out. */
const silentMs = 60_000

/** The way to a conductor's signed internal listener. Every request is signed for itself, so a repeated one has a fresh nonce. */
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
