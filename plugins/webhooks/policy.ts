import { Agent } from 'undici'
import {
  guardedLookup,
  hostOf,
  isAmong,
  isNetworkAddress,
  isPublicAddress,
  outboundUrl,
  type Resolve,
  systemResolve,
} from '#kit/outbound'
import { invalidWebhook } from './errors.ts'

/** Where messages may go. Invariant N1: literals and look-ups are both checked, and redirects are never followed. */
export interface Policy {
  /** AppError 400 `invalid_webhook` when it may not be asked. */
  check(url: string): URL
  agentFor(url: URL): Agent
  close(): Promise<void>
}

export interface PolicyOptions {
  /** Hosts of the operator's own that may be private and may speak plain http. */
  readonly allowHosts: readonly string[]
  readonly timeoutMs: number
  readonly resolve?: Resolve
}

export function createPolicy({ allowHosts, timeoutMs, resolve = systemResolve }: PolicyOptions): Policy {
  const agent = (permits: (address: string) => boolean): Agent =>
    new Agent({
      connect: { lookup: guardedLookup(resolve, permits), timeout: timeoutMs },
      headersTimeout: timeoutMs,
      bodyTimeout: timeoutMs,
      maxHeaderSize: 16 * 1024,
      // One message, one connection: nothing of one tenant's is left for another's.
      pipelining: 0,
    })
  const open = agent(isPublicAddress)
  const own = agent(isNetworkAddress)
  const trusted = (url: URL): boolean => isAmong(hostOf(url), allowHosts)
  return {
    check(text) {
      const mine = URL.canParse(text) && trusted(new URL(text))
      const url = outboundUrl(
        text,
        mine
          ? { permits: isNetworkAddress, schemes: ['https', 'http'] }
          : { permits: isPublicAddress, schemes: ['https'] },
      )
      if (typeof url === 'string') throw invalidWebhook(url)
      return url
    },
    agentFor: (url) => (trusted(url) ? own : open),
    async close() {
      await Promise.all([open.destroy(), own.destroy()])
    },
  }
}
