import { leadsTo, outboundUrl, permittedAddresses, type Refusal, type Resolve } from '#kit/outbound'
import type { McpServer } from '#contracts/mcp-servers'
import { badUrl } from './errors.ts'

/** Where entries of tenants may lead: to the public internet by https, and to what the operator allows. */
export interface AddressPolicy {
  /** Which addresses a URL may have when it is connected to. */
  addressesOf(url: string): NonNullable<McpServer['addresses']>
  /** 400 for a URL that is not public. `field`: what the caller called it, e.g. `body/url`. */
  check(url: string, field: string): Promise<void>
}

/** A name server that is slow must not hold up a write: the address is checked again whenever it is connected to. */
const patienceMs = 2_000

export function createAddressPolicy(allowHosts: readonly string[], resolve: Resolve): AddressPolicy {
  const addressesOf = (url: string) => (leadsTo(url, allowHosts) ? 'network' : 'public')
  return {
    addressesOf,
    async check(text, field) {
      const addresses = addressesOf(text)
      const schemes = addresses === 'network' ? ['https', 'http'] : ['https']
      const url = outboundUrl(text, { permits: permittedAddresses[addresses], schemes })
      if (typeof url === 'string') throw badUrl(field, refusals[url])
      if (addresses === 'public' && (await isPrivate(url.hostname, resolve))) throw badUrl(field, refusals.address)
    },
  }
}

/** True for a name that resolves, and to no public address. One that does not resolve yet may do so later. */
const isPrivate = (host: string, resolve: Resolve): Promise<boolean> =>
  new Promise((done) => {
    const late = setTimeout(() => done(false), patienceMs)
    resolve(host.replace(/^\[|\]$/g, ''), (error, addresses) => {
      clearTimeout(late)
      done(!error && !addresses.some(({ address }) => permittedAddresses.public(address)))
    })
  })

const allowed = 'AGENT_ORC_MCP_ALLOW_HOSTS names hosts that may be private, and speak plain http'
const refusals: Readonly<Record<Refusal, string>> = {
  not_a_url: 'must be a URL',
  scheme: `must be an https URL; ${allowed}`,
  credentials: 'must not carry credentials; send them as headers that refer to secrets',
  address: `must lead to a public address; ${allowed}`,
  host: 'must lead to another host',
}
