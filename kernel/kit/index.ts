// How one role asks another, and a provider its service: HTTP without web streams, tables of routes, and the link.
export { type ExchangeOptions, lazily, type Reply, type ReplyHeaders } from './answer.ts'
export { exchange, neverConnected } from './exchange.ts'
export { askJson, type JsonAnswer, type JsonRequest, NoAnswer } from './json.ts'
export { readBody, readJson } from './read.ts'
export { askPatiently, type Patience } from './retry.ts'
export { createPeers } from './peer.ts'
export type { Ask, Faults, Identity, LinesAnswer, Peer, Peers, PeersOptions } from './peer-types.ts'
export { acceptLinks, type Admission, begun, type Call, type Handler, serve, trusted } from './serve.ts'
