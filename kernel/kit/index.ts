// Calls between roles and to the services of providers: HTTP without web streams, tables of routes, and the link; who calls.
export { awaitFirstChunk, openOnRead, readBody, readJson, type Reply } from './answer.ts'
export {
  type ClientAddress,
  countedAs,
  createClientAddress,
  isWithin,
  type Network,
  networkOf,
} from './client-address.ts'
export { exchange, neverConnected } from './exchange.ts'
export { askJson, askPatiently, type JsonAnswer, type JsonRequest, NoAnswer } from './exchange.ts'
export { type Held, heldStreams, KeyWatch } from './key-watch.ts'
export { runFrames } from './lines.ts'
export { createPeers } from './peer.ts'
export { isOpen, isReachable, type Proof, proofsOf } from './proof.ts'
export type { Identity, LinesAnswer, Peer, Peers, PeersOptions } from './peer-types.ts'
export { type Retries, retry } from './retry.ts'
export { signedBy } from './signed.ts'
export { PeerTls, readTls } from './tls.ts'
export { WrongKeys } from './wrong-keys.ts'
export { acceptLinks, type Admission, serve, trusted } from './serve.ts'
