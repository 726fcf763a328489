import { signedHeaders, type Signer, type SigningKey } from '#contracts/signing'
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
  // The key that the conductor was last seen to know: while keys are rotated it may not have been restarted yet.
  let known: SigningKey = 'CURRENT'
  const other = (): SigningKey => (known === 'CURRENT' ? 'PREVIOUS' : 'CURRENT')
  return {
    tenantHeader: signedHeaders.tenant,
    hasOtherKey: signer.hasPreviousKey ?? false,
    sign: (request, otherKey) => signer.sign(request, otherKey ? other() : known),
    preferOther() {
      known = other()
    },
  }
}
