import { Agent } from 'undici'
import {
  guardedLookup,
  isNetworkAddress,
  isPublicAddress,
  outboundUrl,
  type Resolve,
  systemResolve,
} from '#kit/outbound'
import { isOwnHost, type OwnHost, OwnHosts } from '#kit/own-hosts'
import { invalidWebhook } from './errors.ts'

/** The setting for the operator's own receivers. */
export const AllowHosts = OwnHosts(
  'Your own receivers that may be private and may speak plain http, each with its tenants: ' +
    '`hooks.internal:8443=acme|globex, .corp.example:443=*`.',
)

/** Where messages may go. Invariant N1: literals and look-ups are both checked, and redirects are never followed. */
export interface Policy {
  /** Parses an address. AppError 400 `invalid_webhook` when messages of this tenant may not be sent there. */
  check(tenantId: string, url: string): URL
  agentFor(tenantId: string, url: URL): Agent
  close(): Promise<void>
}

interface PolicyOptions {
  readonly allowHosts: readonly OwnHost[]
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
      // One connection per message, so that no tenant can use a connection of another tenant.
      pipelining: 0,
    })
  const open = agent(isPublicAddress)
  const own = agent(isNetworkAddress)
  const trusted = (tenantId: string, url: URL): boolean => isOwnHost(allowHosts, tenantId, url)
  return {
    check(tenantId, text) {
      const mine = URL.canParse(text) && trusted(tenantId, new URL(text))
      const url = outboundUrl(
        text,
        mine
          ? { permits: isNetworkAddress, schemes: ['https', 'http'] }
          : { permits: isPublicAddress, schemes: ['https'] },
      )
      if (typeof url === 'string') throw invalidWebhook(url)
      return url
    },
    agentFor: (tenantId, url) => (trusted(tenantId, url) ? own : open),
    async close() {
      await Promise.all([open.destroy(), own.destroy()])
    },
  }
}
