// Calls between roles and to the services of providers: HTTP without web streams, tables of routes, and the link; who calls.
export { type ClientAddress, countedAs, createClientAddress, trustedProxies } from './addresses.ts'
export { isWithinAny, type Network, networkOf, networksOf } from './addresses.ts'
export { Ahead, type LoopLooks, loopLooks } from './ahead.ts'
export { awaitFirstChunk, openOnRead, readBody, readJson, type Reply } from './answer.ts'
export { exchange, neverConnected } from './exchange.ts'
export { askJson, askPatiently, type JsonAnswer, type JsonRequest, NoAnswer } from './exchange.ts'
export { takeProxied } from './forward-proxy.ts'
export { type Held, KeyWatch, OpenExchanges } from './keys.ts'
export { Gathered } from './gathered.ts'
export { lingerAfter } from './last-answer.ts'
export { runFrames } from './lines.ts'
export { Mask } from './texts.ts'
export { createPeers } from './peer.ts'
export { answersAnyName, hasKey, isOpen, isReachable, type Proof, proofsOf, signedBy } from './proof.ts'
export type { Identity, LinesAnswer, Peer, Peers, PeersOptions, SignedRequest } from './peer-types.ts'
export {
  addressLimit,
  ahead,
  AtOnce,
  Counts,
  Lately,
  HitWindows,
  type Limit,
  mostKeys,
  Pace,
  rateLimit,
  Spent,
  tooManyKeys,
} from './rate-limit.ts'
export { measureJson, parseJson, takeBytes, takeStreams } from './bodies.ts'
export { type Retries, retry } from './retry.ts'
export { SessionRequests } from './session-requests.ts'
export { storable, storableJson } from './texts.ts'
export { SingleFlight, Sweep, tenantIds } from './sweeps.ts'
export { heldBytesOf, TenantCache } from './tenant-cache.ts'
export { followTls, PeerTls } from './tls.ts'
export { boundedResult, mostResultBytes, mostShownBytes, wholeCharacters } from './texts.ts'
export { inTurns } from './turns.ts'
export { WrongKeys, wrongKeysPerMinute } from './keys.ts'
export { acceptLinks, type Admission, optionsOf, serve, trusted } from './serve.ts'
