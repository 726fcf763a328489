import pg from 'pg'
import { say } from '../command.ts'
import { quantile, timed } from '../statistics.ts'
import { seeded } from './conversations.ts'
import type { Service } from './service.ts'

const profile = 'scale'
const writers = 4
const searches = 400
const warm = 40
/** Rows of one insert: the rest of a large bank is not what is measured. */
const atOnce = 500

export interface ScaleFigures {
  readonly records: number
  /** Memories a second over the API, one after the other by each of the writers. */
  readonly writeRate: number
  readonly search: { readonly p50: number; readonly p99: number }
  /** The same questions to a tsvector with a GIN index and no row security, straight from the database. */
  readonly plain: { readonly p50: number; readonly p99: number }
  /** `SELECT 1` on the same connection: how long this machine lets anybody wait now. */
  readonly bare: { readonly p50: number; readonly p99: number }
}

/** Texts as people write: few words are common, most are rare. */
export class Texts {
  readonly #random: () => number
  readonly #words: readonly string[]

  constructor(seed: number) {
    this.#random = seeded(seed)
    const syllables = 'ba co di fu ga he jo ka li mo na pe qui ro sa te vu wi xa ze'.split(' ')
    this.#words = Array.from({ length: 20_000 }, () =>
      Array.from(
        { length: 2 + Math.floor(this.#random() * 3) },
        () => syllables[Math.floor(this.#random() * syllables.length)],
      ).join(''),
    )
  }

  word(): string {
    // About Zipf: the n-th word is there in proportion to 1/n.
    return this.#words[Math.floor(this.#words.length ** this.#random()) - 1] ?? this.#words[0]!
  }
  sentence(): string {
    const words = Array.from({ length: 8 + Math.floor(this.#random() * 14) }, () => this.word())
    return `${words[0]!.charAt(0).toUpperCase()}${words[0]!.slice(1)} said that ${words.slice(1).join(' ')}.`
  }
  question(): string {
    return `What about ${Array.from({ length: 3 + Math.floor(this.#random() * 4) }, () => this.word()).join(' ')}?`
  }
}

/** Fills a bank, and measures writes and searches in it. */
export async function measureScale(service: Service, records: number, seed: number): Promise<ScaleFigures> {
  const texts = new Texts(seed)
  await service.ask('POST', '/api/profiles', { name: profile })
  const client = new pg.Client({ connectionString: service.dsn })
  await client.connect()
  const write = (): Promise<unknown> =>
    service.ask('POST', `/api/profiles/${profile}/memories`, { processedContent: texts.sentence() })
  for (let i = 0; i < 20; i++) await write()
  say(`filling the bank with ${records} memories`)
  await fill(client, texts, records)
  const each = Math.ceil(Math.min(2_000, records / 10) / writers)
  say(`${each * writers} memories over the API`)
  const began = performance.now()
  await Promise.all(
    Array.from({ length: writers }, async () => {
      for (let i = 0; i < each; i++) await write()
    }),
  )
  const writeRate = (each * writers) / ((performance.now() - began) / 1_000)
  // As autovacuum leaves the tables some time later.
  await client.query('VACUUM ANALYZE memories, memory_postings, memory_terms')
  await client.query('CREATE INDEX plain_words ON plain USING gin (words)')
  await client.query('ANALYZE plain')
  say(`${searches} searches`)
  const ours: number[] = []
  const plain: number[] = []
  const bare: number[] = []
  for (let i = -warm; i < searches; i++) {
    const q = texts.question()
    const [a, b, c] = [
      await timed(() => service.ask('GET', `/api/profiles/${profile}/memories/search?q=${encodeURIComponent(q)}`)),
      await timed(() => client.query(ask, [q])),
      await timed(() => client.query('SELECT 1')),
    ]
    if (i < 0) continue
    ours.push(a)
    plain.push(b)
    bare.push(c)
  }
  await client.end()
  const of = (all: readonly number[]) => ({ p50: quantile(all, 0.5), p99: quantile(all, 0.99) })
  return { records, writeRate, search: of(ours), plain: of(plain), bare: of(bare) }
}

const ask = `SELECT id FROM plain, (
    SELECT string_agg(quote_literal(word), ' | ')::tsquery AS asked FROM unnest(tsvector_to_array(to_tsvector('english', $1))) AS word) q
  WHERE words @@ asked ORDER BY ts_rank(words, asked) DESC LIMIT 8`

/** As many rows as the API would have made: the words are stemmed by the database, and the triggers index them. */
export async function fill(
  client: pg.Client,
  texts: Texts,
  records: number,
  tenantId = 'default',
  bank = profile,
): Promise<void> {
  await client.query(`CREATE TEMP TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY, words tsvector)`)
  for (let from = 0; from < records; from += atOnce) {
    const sentences = Array.from({ length: Math.min(atOnce, records - from) }, () => texts.sentence())
    await client.query('BEGIN')
    await client.query(`SELECT set_config('app.tenant_id', $1, true)`, [tenantId])
    await client.query(
      `INSERT INTO memories (tenant_id, id, bank, profile, person, content, source, confidence, language, digest, terms, weights, length, bytes)
       SELECT $3, 'mem_' || $2 || '_' || n, b.bank, b.profile, 0, text, 'curated', 1, 'en', sha256(text::bytea), t.terms,
         array_fill(100::smallint, ARRAY[cardinality(t.terms)]), cardinality(t.terms), octet_length(text)
       FROM memory_banks b CROSS JOIN unnest($1::text[]) WITH ORDINALITY AS given (text, n)
         CROSS JOIN LATERAL (SELECT tsvector_to_array(to_tsvector('english', text)) || ARRAY['#2026', '#2026-05', '#-05'] AS terms) t
       WHERE b.tenant_id = $3 AND b.profile = $4`,
      [sentences, String(from), tenantId, bank],
    )
    await client.query('COMMIT')
    await client.query(
      `INSERT INTO plain (words) SELECT to_tsvector('english', text) FROM unnest($1::text[]) AS text`,
      [sentences],
    )
  }
}
