// How one role asks another, and a provider its service: HTTP without web streams, tables of routes, and the link.
export { type ExchangeOptions, lazily, type Reply, type ReplyHeaders } from './answer.ts'
export { exchange, neverConnected } from './exchange.ts'
export { askJson, type JsonAnswer, type JsonRequest, NoAnswer } from './json.ts'
export { readBody, readJson } from './read.ts'
export { askPatiently, type Patience } from './retry.ts'
export {
  type Ask,
  createPeers,
  type Faults,
  type Identity,
  type LinesAnswer,
  type Peer,
  type Peers,
  type PeersOptions,
} from './peer.ts'
export { acceptLinks, type Admission, begun, type Call, type Handler, serve, trusted } from './serve.ts'
