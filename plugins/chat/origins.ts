import type { FastifyRequest } from 'fastify'
import { accessErrors } from '#contracts/access-errors'
import type { Database } from '#contracts/database'
import { type ClientAddress, countedAs, Counts, SingleFlight } from '#kit'
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

interface Asked {
  readonly tenant: string
  readonly agent: string
  /** Both together. */
  readonly of: string
  readonly client: string
}

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
  /** Agents that allow some origins, also those whose time is over, and others, such as those that do not exist. */
  readonly #known = new Map<string, Known>()
  readonly #none = new Map<string, Known>()
  readonly #underWay = new SingleFlight<readonly string[]>()
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
    const asked = { tenant, agent, of: `${tenant}/${agent}`, client: countedAs(this.#clientOf(request)) }
    const known = this.#recall(asked)
    if (known) return known.includes(origin)
    // What was allowed a while ago most likely is, whoever else of this address asks for what: one look-up a second for each such agent.
    if (this.#known.get(asked.of)?.origins.includes(origin)) return (await this.#lookUp(asked)).includes(origin)
    return this.#lookUps.take(asked.client, () => this.#admitsNew(asked, origin))
  }

  async #admitsNew(asked: Asked, origin: string): Promise<boolean> {
    // Who was before in this line may have asked the same.
    const meanwhile = this.#recall(asked)
    if (meanwhile) return meanwhile.includes(origin)
    const { client } = asked
    if (this.#inVain.of(client) >= mostInVain) throw tooMany(Math.ceil((minuteMs - (Date.now() % minuteMs)) / 1_000))
    const isAllowed = (await this.#lookUp(asked)).includes(origin)
    if (!isAllowed) this.#inVain.count(client)
    return isAllowed
  }
  #lookUp({ tenant, agent, of }: Asked): Promise<readonly string[]> {
    return this.#underWay.run(of, async () => {
      const [row] = await this.#database.unit<Pick<Known, 'origins'>>(tenant, { ...allowed, values: [tenant, agent] })
      const origins = row?.origins ?? []
      this.#remember(of, origins)
      return origins
    })
  }

  #recall({ of }: Asked): readonly string[] | undefined {
    const known = this.#known.get(of) ?? this.#none.get(of)
    return known && known.until > Date.now() ? known.origins : undefined
  }
  /** Names that somebody made up displace only each other. */
  #remember(of: string, origins: readonly string[]): void {
    for (const map of [this.#known, this.#none]) map.delete(of)
    const map = origins.length > 0 ? this.#known : this.#none
    map.set(of, { origins, until: Date.now() + keepMs })
    if (map.size > mostKnown) map.delete(map.keys().next().value!)
  }
}
