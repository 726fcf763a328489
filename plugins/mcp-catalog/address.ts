import { outboundUrl, permittedAddresses, type Refusal, type Resolve } from '#kit/outbound'
import { isOwnHost, type OwnHost } from '#kit/own-hosts'
import type { McpServer } from '#contracts/mcp-servers'
import { badUrl } from './errors.ts'

/** Decides where the URLs of tenants' entries may lead: to the public internet over https, and to the hosts that the operator allows this tenant. */
export interface AddressPolicy {
  /** The kind of addresses that a connection of this tenant to this URL may use. */
  addressesOf(tenantId: string, url: string): NonNullable<McpServer['addresses']>
  /** Rejects with 400 for a URL that is not public. `field` is the caller's name for the URL, e.g. `body/url`. */
  check(tenantId: string, url: string, field: string): Promise<void>
}

/** A slow name server must not hold up a write. Skipping the check is safe, because every connection checks the address again. */
const patienceMs = 2_000

export function createAddressPolicy(allowHosts: readonly OwnHost[], resolve: Resolve): AddressPolicy {
  const addressesOf = (tenantId: string, text: string) =>
    URL.canParse(text) && isOwnHost(allowHosts, tenantId, new URL(text)) ? 'network' : 'public'
  return {
    addressesOf,
    async check(tenantId, text, field) {
      const addresses = addressesOf(tenantId, text)
      const schemes = addresses === 'network' ? ['https', 'http'] : ['https']
      const url = outboundUrl(text, { permits: permittedAddresses[addresses], schemes })
      if (typeof url === 'string') throw badUrl(field, refusals[url])
      if (addresses === 'public' && (await isPrivate(url.hostname, resolve))) throw badUrl(field, refusals.address)
    },
  }
}

/** True for a name that resolves to non-public addresses only. A name that does not resolve yet may do so later, so it counts as not private. */
const isPrivate = (host: string, resolve: Resolve): Promise<boolean> =>
  new Promise((done) => {
    const late = setTimeout(() => done(false), patienceMs)
    resolve(host.replace(/^\[|\]$/g, ''), (error, addresses) => {
      clearTimeout(late)
      done(!error && !addresses.some(({ address }) => permittedAddresses.public(address)))
    })
  })

const allowed =
  'AGENT_ORC_MCP_ALLOW_HOSTS names hosts, with their ports and tenants, that may be private and speak plain http'
const refusals: Readonly<Record<Refusal, string>> = {
  not_a_url: 'must be a URL',
  scheme: `must be an https URL; ${allowed}`,
  credentials: 'must not carry credentials; send them as headers that refer to secrets',
  address: `must lead to a public address; ${allowed}`,
  host: 'must lead to another host',
}
