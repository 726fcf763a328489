export { ForbiddenAddressError, guardedLookup, isPublicAddress, type Resolve, systemResolve } from './addresses.ts'
export { hostOf, isAmong, type OutboundPolicy, outboundUrl, type Refusal } from './url.ts'
