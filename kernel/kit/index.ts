// Calls between roles and to the services of providers: HTTP without web streams, tables of routes, and the link.
export { awaitFirstChunk, openOnRead, readBody, readJson, type Reply } from './answer.ts'
export { exchange, neverConnected } from './exchange.ts'
export { askJson, askPatiently, type JsonAnswer, type JsonRequest, NoAnswer } from './exchange.ts'
export { runFrames } from './lines.ts'
export { createPeers } from './peer.ts'
export type { Identity, LinesAnswer, Peer, Peers, PeersOptions } from './peer-types.ts'
export { type Retries, retry } from './retry.ts'
export { acceptLinks, type Admission, serve, trusted } from './serve.ts'
