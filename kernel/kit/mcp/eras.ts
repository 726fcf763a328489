import { hash } from 'node:crypto'
import type { Client, PriorDiscovery } from '@modelcontextprotocol/client'

/** A server, and what it is sent. */
interface Address {
  readonly url: string
  readonly headers?: Readonly<Record<string, string>> | undefined
}

/** Servers that are remembered, for how long, and how many characters each may say of itself: one that says more is asked each time. */
const most = 1_000
const keepMs = 10 * 60_000
const mostChars = 32 * 1024

/**
 * Which revision of the protocol servers speak, so that a session begins without asking: with `initialize`, or, of one that speaks that of
 * 2026-07-28, with the first request. Known for each address and what it is sent: a server may tell callers different things.
 */
export class McpEras {
  /** Those noted last are at the end. */
  readonly #known = new Map<string, { readonly prior: PriorDiscovery; readonly until: number }>()

  of(address: Address): PriorDiscovery | undefined {
    const known = this.#known.get(keyOf(address))
    return known && performance.now() < known.until ? known.prior : undefined
  }
  /** Notes what a client has found that is connected. */
  note(address: Address, client: Client): void {
    const key = keyOf(address)
    if (this.of(address)) return
    const discover = client.getProtocolEra() === 'modern' ? client.getDiscoverResult() : undefined
    this.#known.delete(key)
    if (discover && JSON.stringify(discover).length > mostChars) return
    this.#known.set(key, {
      prior: discover ? { kind: 'modern', discover } : { kind: 'legacy' },
      until: performance.now() + keepMs,
    })
    if (this.#known.size > most) this.#known.delete(this.#known.keys().next().value!)
  }
  forget(address: Address): void {
    this.#known.delete(keyOf(address))
  }
}

const keyOf = ({ url, headers }: Address): string => hash('sha256', JSON.stringify([url, headers]))
