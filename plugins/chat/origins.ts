import type { FastifyRequest } from 'fastify'
import { accessErrors } from '#contracts/access-errors'
import type { Database } from '#contracts/database'
import { type ClientAddress, countedAs, Counts } from '#kit'
import { Shares } from '#kit/turns'

const allowed = {
  name: 'chat-origins',
  text: `SELECT allowed_origins AS origins FROM published_agents WHERE tenant_id = $1 AND slug = $2 AND unpublished_at IS NULL`,
}

/** A tenant, or a slug. No other text names one, and PostgreSQL would answer some other texts with an error. */
export const name = /^[A-Za-z0-9_.-]{1,128}$/
export const namesOf = (request: FastifyRequest) =>
  request.params as { readonly tenant: string; readonly agent: string }

/** How many agents are remembered, and for how long. The origins of one take up to 30 KB. */
const mostKnown = 1_000
const keepMs = 1_000
/** How often an address may ask in vain in a minute, for what nobody remembers. Pages of an agent ask for what it allows, which is not counted. */
const mostInVain = 300
const minuteMs = 60_000

const tooMany = (seconds: number) =>
  accessErrors.tooManyWrongKeys({
    message: 'Too many requests without a valid key came from this address; wait as Retry-After says.',
    headers: { 'retry-after': String(seconds) },
  })

interface Known {
  readonly origins: readonly string[]
  readonly until: number
}

/**
 * The origins that agents allow, for requests without a valid key. Anybody may send those, and name any tenant in them or invent thousands. So a
 * look-up waits for others from its address, and never in the line of the tenant that it names; few of all addresses are under way at once.
 */
export class AllowedOrigins {
  readonly #database: Pick<Database, 'unit'>
  readonly #clientOf: ClientAddress
  readonly #known = new Map<string, Known>()
  readonly #inVain = new Counts(minuteMs)
  readonly #lookUps = new Shares({ together: 2, each: 1, mostWaiting: 1_000, busy: () => tooMany(1) })

  constructor(database: Pick<Database, 'unit'>, clientOf: ClientAddress) {
    this.#database = database
    this.#clientOf = clientOf
  }

  /** True when the agent of the URL exists and lists `origin`. Rejects with 429 when the address has asked too often in vain. */
  async admits(request: FastifyRequest, origin: string): Promise<boolean> {
    const { tenant, agent } = namesOf(request)
    if (!name.test(tenant) || !name.test(agent)) return false
    const of = `${tenant}/${agent}`
    const known = this.#recall(of)
    if (known) return known.includes(origin)
    const client = countedAs(this.#clientOf(request))
    return this.#lookUps.take(client, async () => {
      // Who was before in this line may have asked the same.
      const meanwhile = this.#recall(of)
      if (meanwhile) return meanwhile.includes(origin)
      if (this.#inVain.of(client) >= mostInVain) throw tooMany(Math.ceil((minuteMs - (Date.now() % minuteMs)) / 1_000))
      const [row] = await this.#database.unit<Pick<Known, 'origins'>>(tenant, { ...allowed, values: [tenant, agent] })
      const origins = row?.origins ?? []
      this.#remember(of, origins)
      const isAllowed = origins.includes(origin)
      if (!isAllowed) this.#inVain.count(client)
      return isAllowed
    })
  }

  #recall(of: string): readonly string[] | undefined {
    const known = this.#known.get(of)
    return known && known.until > Date.now() ? known.origins : undefined
  }
  #remember(of: string, origins: readonly string[]): void {
    this.#known.delete(of)
    this.#known.set(of, { origins, until: Date.now() + keepMs })
    if (this.#known.size > mostKnown) this.#known.delete(this.#known.keys().next().value!)
  }
}
