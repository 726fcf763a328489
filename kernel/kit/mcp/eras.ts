import { hash } from 'node:crypto'
import type { Client, PriorDiscovery } from '@modelcontextprotocol/client'

/** A server, with what it is sent. */
interface Address {
  readonly url: string
  readonly headers?: Readonly<Record<string, string>> | undefined
}

/** How many servers are remembered, for how long, and how many characters each description may have. A server with a longer one is asked each time. */
const most = 1_000
const keepMs = 10 * 60_000
const mostChars = 32 * 1024

/**
 * Remembers which protocol revision a server speaks, so that a session can begin without asking: with `initialize`, or for the revision of
 * 2026-07-28 with the first request. It is known per address and per content that is sent, because a server may tell callers different things.
 */
export class McpEras {
  /** The entries that were noted last are at the end. */
  readonly #known = new Map<string, { readonly prior: PriorDiscovery; readonly until: number }>()

  of(address: Address): PriorDiscovery | undefined {
    const known = this.#known.get(keyOf(address))
    return known && performance.now() < known.until ? known.prior : undefined
  }
  /** Records what a connected client has discovered. */
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
