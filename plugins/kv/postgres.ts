import type { FastifyBaseLogger } from 'fastify'
import { isAppError } from '#kernel'
import type { Database, Statement } from '#contracts/database'
import type { Hit } from '#contracts/kv'
import { tooManyKeys } from '#kit'
import { type Store, storeAway, storeForgot } from './store.ts'

// About 150 MB in the server. It is checked at each sweep, so the rows written between two sweeps come on top.
const mostRows = 1_000_000
const sweepEveryMs = 10_000
const sweepRows = 100_000

interface Claim {
  readonly key: string
  readonly ttlMs: number
  readonly madeAt: number | undefined
}
type Claimed = 'fresh' | 'taken' | 'forgotten'

interface HitOrder {
  readonly key: string
  readonly limit: number
  readonly windowSeconds: number
}

/** One order, given by `count` callers. */
interface HitGroup extends HitOrder {
  count: number
}

interface Counted {
  readonly granted: number
  readonly total: number
  readonly retry_after_ms: number
}

// The keys come sorted, so that two statements never wait for each other's rows; a sweep waits for none.
const claimText = `
  WITH memory AS (SELECT begun_at FROM kv_memory), claimed AS (
    INSERT INTO kv_claims AS c (key, gone_at)
    SELECT wanted.key, clock_timestamp() + wanted.ttl_ms * interval '1 millisecond'
    FROM unnest($1::text[], $2::float8[], $3::float8[]) AS wanted (key, ttl_ms, made_at), memory
    WHERE wanted.made_at IS NULL OR to_timestamp(wanted.made_at / 1000) >= memory.begun_at
    ON CONFLICT (key) DO UPDATE SET gone_at = excluded.gone_at WHERE c.gone_at <= clock_timestamp()
    RETURNING key
  )
  SELECT (SELECT extract(epoch FROM begun_at) * 1000 FROM memory)::float8 AS begun, ARRAY(SELECT key FROM claimed) AS keys`
const beginMemory: Statement = { text: 'INSERT INTO kv_memory DEFAULT VALUES ON CONFLICT DO NOTHING' }

const hitText = `
  SELECT counted.granted, counted.total, counted.retry_after_ms
  FROM unnest($1::text[], $2::integer[], $3::integer[], $4::integer[]) WITH ORDINALITY
      AS wanted (key, most, window_seconds, hits, place),
    kv_hit(wanted.key, wanted.most, wanted.window_seconds, wanted.hits) AS counted
  ORDER BY wanted.place`

const sweepOf = (table: string): Statement => ({
  name: `kv_sweep_${table}`,
  text: `DELETE FROM ${table} WHERE key IN
    (SELECT key FROM ${table} WHERE gone_at <= now() LIMIT ${sweepRows} FOR UPDATE SKIP LOCKED)`,
})
const countRows: Statement = {
  name: 'kv_rows',
  text: 'SELECT (SELECT count(*) FROM kv_claims) AS claims, (SELECT count(*) FROM kv_windows) AS windows',
}

interface PostgresOptions {
  readonly database: Pick<Database, 'systemBatch'>
  readonly log: FastifyBaseLogger
  readonly limit?: number
}

/** Nonces and limits in unlogged tables: one statement for all that ask at the same time. */
export class PostgresStore implements Store {
  readonly #options: PostgresOptions
  readonly #claims = createBatches((claims: readonly Claim[]) => this.#claimAll(claims))
  readonly #hits = createBatches((orders: readonly HitOrder[]) => this.#hitAll(orders))
  readonly #full = { claims: false, windows: false }
  /** There may be rows to sweep. */
  #used = false
  #sweeping: Promise<void> | undefined
  readonly #timer: NodeJS.Timeout

  constructor(options: PostgresOptions) {
    this.#options = options
    this.#timer = setInterval(() => {
      if (this.#used) this.#sweeping ??= this.sweep().finally(() => (this.#sweeping = undefined))
    }, sweepEveryMs).unref()
  }

  async claim(key: string, ttlMs: number, madeAt?: number): Promise<boolean> {
    if (this.#full.claims) throw tooManyKeys()
    const claimed = await this.#claims({ key, ttlMs, madeAt })
    if (claimed === 'forgotten') throw storeForgot()
    return claimed === 'fresh'
  }
  async hit(key: string, limit: number, windowSeconds: number): Promise<Hit> {
    if (this.#full.windows) throw tooManyKeys()
    return this.#hits({ key, limit, windowSeconds })
  }
  async sweep(): Promise<void> {
    const { database, log, limit = mostRows } = this.#options
    try {
      const [, , [rows]] = await database.systemBatch<[[], [], [{ claims: number; windows: number }]]>([
        sweepOf('kv_claims'),
        sweepOf('kv_windows'),
        countRows,
      ])
      this.#full.claims = rows.claims >= limit
      this.#full.windows = rows.windows >= limit
      // Sweeping goes on until no row is left.
      this.#used = rows.claims + rows.windows > 0
    } catch (err) {
      log.debug({ err }, 'shared state was not swept')
    }
  }
  async close(): Promise<void> {
    clearInterval(this.#timer)
    await this.#sweeping
  }

  async #claimAll(claims: readonly Claim[]): Promise<Claimed[]> {
    // Of several claims of one key in this statement, the first one gets it.
    const wanted = [...new Map(claims.toReversed().map((one) => [one.key, one])).values()].toSorted(byKey)
    const values = [wanted.map((w) => w.key), wanted.map((w) => w.ttlMs), wanted.map((w) => w.madeAt)]
    type Answer = { begun: number | null; keys: string[] }
    const [answer] = await this.#ask<Answer>({ name: 'kv_claim', text: claimText, values })
    const { begun, keys } = answer!
    if (begun === null) {
      // The server crashed, which emptied the unlogged tables. From now on it remembers again.
      await this.#ask(beginMemory)
      this.#options.log.warn('PostgreSQL lost its nonces in a crash; requests signed before are refused')
      return claims.map(() => 'forgotten')
    }
    const fresh = new Set(keys)
    return claims.map(({ key, madeAt = begun }) => {
      if (madeAt < begun) return 'forgotten'
      return fresh.delete(key) ? 'fresh' : 'taken'
    })
  }
  async #hitAll(orders: readonly HitOrder[]): Promise<Hit[]> {
    const groups = new Map<string, HitGroup>()
    const names = orders.map(({ key, limit, windowSeconds }) => `${limit} ${windowSeconds} ${key}`)
    orders.forEach((order, i) => {
      const group = groups.get(names[i]!) ?? { ...order, count: 0 }
      groups.set(names[i]!, group)
      group.count++
    })
    const wanted = [...groups].toSorted(([, a], [, b]) => byKey(a, b))
    const column = (value: (group: HitGroup) => unknown) => wanted.map(([, group]) => value(group))
    const rows = await this.#ask<Counted>({
      name: 'kv_hit',
      text: hitText,
      values: [column((g) => g.key), column((g) => g.limit), column((g) => g.windowSeconds), column((g) => g.count)],
    })
    const answers = new Map(wanted.map(([name], i) => [name, inTurn(rows[i]!)]))
    return names.map((name) => answers.get(name)!())
  }
  async #ask<Row extends object>(statement: Statement): Promise<Row[]> {
    this.#used = true
    try {
      return (await this.#options.database.systemBatch<[Row[]]>([statement]))[0]
    } catch (error) {
      throw isAppError(error) ? error : storeAway(error)
    }
  }
}

const byKey = (a: { readonly key: string }, b: { readonly key: string }): number =>
  a.key < b.key ? -1 : a.key > b.key ? 1 : 0

/** Hands out the answers of a group one by one: the callers within the limit come first. */
function inTurn({ granted, total, retry_after_ms }: Counted): () => Hit {
  let turn = 0
  return () =>
    turn < granted
      ? { allowed: true, count: total + ++turn, retryAfterMs: 0 }
      : { allowed: false, count: total + granted, retryAfterMs: retry_after_ms }
}

/** Statements under way at once: one more than needed to keep the server busy while another's answer travels. */
const lanes = 2
const groupSize = 64
/** How many callers may wait for a slow server; a further one is refused. */
const mostWaiting = 10_000

interface Waiting<Item, Result> {
  readonly item: Item
  readonly resolve: (result: Result) => void
  readonly reject: (error: unknown) => void
}

/**
 * Joins the questions of many callers into one statement. A question that comes alone is sent at once; while all lanes are
 * busy, questions wait and are sent together. `send` resolves to the result of each.
 */
function createBatches<Item, Result>(
  send: (items: readonly Item[]) => Promise<readonly Result[]>,
): (item: Item) => Promise<Result> {
  const waiting: Waiting<Item, Result>[] = []
  let busy = 0
  const carry = async (group: readonly Waiting<Item, Result>[]): Promise<void> => {
    try {
      const results = await send(group.map(({ item }) => item))
      group.forEach(({ resolve }, i) => resolve(results[i]!))
    } catch (error) {
      for (const { reject } of group) reject(error)
    }
    busy--
    pump()
  }
  const pump = (): void => {
    while (busy < lanes && waiting.length > 0) {
      busy++
      void carry(waiting.splice(0, groupSize))
    }
  }
  return (item) =>
    new Promise((resolve, reject) => {
      if (waiting.length >= mostWaiting) return reject(tooManyKeys())
      waiting.push({ item, resolve, reject })
      pump()
    })
}
