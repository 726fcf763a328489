import { Agent } from 'undici'
import { Type } from '@sinclair/typebox'
import { everyTenant, type TenantList } from '#kernel'
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

const host = '(\\.?[A-Za-z0-9_-][A-Za-z0-9._-]*|\\[[0-9A-Fa-f:.]+\\])'
const tenants = '(\\*|[A-Za-z0-9][A-Za-z0-9_.-]*(\\|[A-Za-z0-9][A-Za-z0-9_.-]*)*)'
const entry = `${host}:[0-9]{1,5}=${tenants}`

/** Receivers of the operator's own, `host:port=tenant|tenant`: a list for the plugin; several may be in one text, with commas. */
export const AllowHosts = Type.Transform(
  Type.Array(
    Type.String({
      pattern: `^(${entry}(,\\s*${entry})*)?$`,
      expects:
        'host:port=tenants, with commas between: hooks.internal:8443=acme|globex for two tenants, .corp.example:443=* for all; ' +
        'there is no entry for all ports',
    }),
    {
      default: [],
      description:
        'Receivers of your own that may be private and may speak plain http, for the tenants that they name: ' +
        '`hooks.internal:8443=acme|globex, .corp.example:443=*`.',
    },
  ),
)
  .Decode((list): AllowedHost[] => list.flatMap((text) => text.split(',')).flatMap(allowedHost))
  .Encode(() => [])

/** A receiver that may be private. */
export interface AllowedHost {
  readonly host: string
  readonly port: string
  readonly tenants: TenantList
}

function allowedHost(text: string): AllowedHost[] {
  const [, name, port, ids] = /^\s*(.+):(\d+)=(.+)$/.exec(text) ?? []
  if (name === undefined || port === undefined || ids === undefined) return []
  const named = new Set(ids.split('|'))
  const list = { allows: (id: string) => named.has(id), empty: false }
  return [{ host: name.replace(/^\[|\]$/g, ''), port, tenants: ids === '*' ? everyTenant : list }]
}

/** Where messages may go. Invariant N1: literals and look-ups are both checked, and redirects are never followed. */
export interface Policy {
  /** AppError 400 `invalid_webhook` when a tenant may not have it asked. */
  check(tenantId: string, url: string): URL
  agentFor(tenantId: string, url: URL): Agent
  close(): Promise<void>
}

export interface PolicyOptions {
  readonly allowHosts: readonly AllowedHost[]
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
  const trusted = (tenantId: string, url: URL): boolean => {
    const port = url.port || (url.protocol === 'https:' ? '443' : '80')
    return allowHosts.some(
      (one) => one.port === port && isAmong(hostOf(url), [one.host]) && one.tenants.allows(tenantId),
    )
  }
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
