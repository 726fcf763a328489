import type { SidecarLink } from '#contracts/sidecar'
import type { RunHost } from './host.ts'

/** The host for a runner in the same kernel: what the HTTP routes do, without the socket. */
export const localLink = (host: RunHost): SidecarLink => ({
  health: async () => host.health(),
  // Accepted, or refused, when it is first read.
  run: (envelope, signal) => ({
    [Symbol.asyncIterator]: () => host.accept(envelope)(signal)[Symbol.asyncIterator](),
  }),
  exportState: (runtime, sessionId) => host.exportState(runtime, sessionId),
  hydrate: (runtime, sessionId, bundle) => host.hydrate(runtime, sessionId, bundle),
  forget: (runtime, sessionId) => host.forget(runtime, sessionId),
})
