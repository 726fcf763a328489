// How one role asks another, and a provider its service: HTTP without web streams, tables of routes, and the link.
export { begun, type ExchangeOptions, lazily, readBody, readJson, type Reply, type ReplyHeaders } from './answer.ts'
export { exchange, neverConnected } from './exchange.ts'
export { askJson, askPatiently, type JsonAnswer, type JsonRequest, NoAnswer, type Patience } from './json.ts'
export { createPeers } from './peer.ts'
export type { Ask, Faults, Identity, LinesAnswer, Peer, Peers, PeersOptions } from './peer-types.ts'
export { acceptLinks, type Admission, type Call, type Handler, serve, trusted } from './serve.ts'
