import type { FastifyBaseLogger } from 'fastify'
import type { Database, Statement } from '#contracts/database'
import type { ResolvedSecret } from '#contracts/secrets'

interface Read {
  readonly name: string
  readonly reader: string
  version: number
  reads: number
  readonly first: number
  last: number
}

const flushEveryMs = 5_000
/** The most readers of all tenants that are held between two writes. Further ones are not counted, because each would become a row. */
const maxNoted = 10_000
const maxReader = 200
/** The most readers that are stored for a secret: the most recent ones. A legal hold keeps all: who read a secret is evidence. */
const maxReaders = 100

/** Counts who reads which secret. The counts are written in the background, so that a read costs no write. */
export class Reads {
  readonly #database: Database
  readonly #log: Pick<FastifyBaseLogger, 'warn'>
  #noted = new Map<string, Map<string, Read>>()
  #size = 0
  #timer: NodeJS.Timeout | undefined

  constructor(database: Database, log: Pick<FastifyBaseLogger, 'warn'>) {
    this.#database = database
    this.#log = log
  }

  note(tenantId: string, { name, version }: Pick<ResolvedSecret, 'name' | 'version'>, by: string): void {
    const reader = by.slice(0, maxReader)
    const of = this.#noted.get(tenantId) ?? new Map<string, Read>()
    const known = of.get(`${name}/${reader}`)
    const now = Date.now()
    if (known) {
      known.version = version
      known.reads++
      known.last = now
      return
    }
    if (this.#size >= maxNoted) return
    this.#size++
    this.#noted.set(tenantId, of.set(`${name}/${reader}`, { name, reader, version, reads: 1, first: now, last: now }))
    this.#timer ??= setTimeout(() => void this.flush(), flushEveryMs).unref()
  }
  /** Writes the counts. Counts that cannot be written are dropped, because retries would hold memory. */
  async flush(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    const noted = this.#noted
    this.#noted = new Map()
    this.#size = 0
    for (const [tenantId, reads] of noted) {
      const all = [...reads.values()]
      await this.#database.batch(tenantId, [upsert(tenantId, all), trim(tenantId, all)]).catch((err: unknown) => {
        this.#log.warn({ err, tenant: tenantId, readers: all.length }, 'reads of secrets could not be recorded')
      })
    }
  }
}

// Rows are written in the order of the key, so that two processes cannot deadlock. Reads of a deleted secret are dropped.
const upsert = (tenantId: string, reads: readonly Read[]): Statement => ({
  name: 'secrets_reads',
  text: `INSERT INTO secret_reads AS r (tenant_id, name, reader, version, reads, first_read_at, last_read_at)
         SELECT $1, n.name, n.reader, n.version, n.reads, to_timestamp(n.first / 1000), to_timestamp(n.last / 1000)
         FROM unnest($2::text[], $3::text[], $4::int[], $5::int[], $6::float8[], $7::float8[])
           AS n (name, reader, version, reads, first, last)
         JOIN secrets s ON s.tenant_id = $1 AND s.name = n.name
         ORDER BY n.name, n.reader
         ON CONFLICT (tenant_id, name, reader) DO UPDATE SET reads = r.reads + excluded.reads,
           version = CASE WHEN excluded.last_read_at >= r.last_read_at THEN excluded.version ELSE r.version END,
           last_read_at = greatest(r.last_read_at, excluded.last_read_at)`,
  values: [
    tenantId,
    reads.map(({ name }) => name),
    reads.map(({ reader }) => reader),
    reads.map(({ version }) => version),
    reads.map((read) => read.reads),
    reads.map(({ first }) => first),
    reads.map(({ last }) => last),
  ],
})

// The tenant's row is locked, so that nothing goes any more when a legal hold was answered, but only if there is something to delete.
const trim = (tenantId: string, reads: readonly Read[]): Statement => ({
  name: 'secrets_reads_trim',
  text: `WITH due AS MATERIALIZED (
           SELECT name, reader, last_read_at FROM (
             SELECT name, reader, last_read_at, row_number() OVER (PARTITION BY name ORDER BY last_read_at DESC, reader) AS place
             FROM secret_reads WHERE tenant_id = $1 AND name = ANY ($2)) n
           WHERE place > ${maxReaders}
         ), free AS MATERIALIZED (
           SELECT id FROM tenants WHERE id = $1 AND NOT legal_hold AND EXISTS (SELECT FROM due) FOR SHARE)
         DELETE FROM secret_reads r USING due
         WHERE EXISTS (SELECT FROM free) AND r.tenant_id = $1 AND r.name = due.name AND r.reader = due.reader
           -- Another process may have noted a newer read.
           AND r.last_read_at = due.last_read_at`,
  values: [tenantId, [...new Set(reads.map(({ name }) => name))]],
})
