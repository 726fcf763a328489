import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import type { Embeddings } from '../model.ts'
import { alive, isOf, type Whose } from '../bank/rows.ts'
import { lock } from '../bank/statements.ts'

/** Memories that are embedded by one request. */
const atOnce = 64
/** Without a vector index, this many of the newest memories are compared one by one. */
const mostCompared = 20_000
/** The most neighbours that a question uses, and the least similarity that counts. */
const mostNear = 60
const leastSimilar = 0.2

/** The table is not in our migrations, because it cannot exist without the extension. */
const tables = [
  `CREATE TABLE IF NOT EXISTS memory_vectors (
     tenant_id text NOT NULL, memory bigint NOT NULL, bank integer NOT NULL, model text NOT NULL, embedding vector NOT NULL,
     PRIMARY KEY (tenant_id, bank, model, memory))`,
  'ALTER TABLE memory_vectors ENABLE ROW LEVEL SECURITY',
  'ALTER TABLE memory_vectors FORCE ROW LEVEL SECURITY',
  `DO $$ BEGIN
     CREATE POLICY tenant ON memory_vectors
       USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
       WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
   EXCEPTION WHEN duplicate_object THEN NULL; END $$`,
  `CREATE OR REPLACE FUNCTION forget_memory_vectors() RETURNS trigger LANGUAGE plpgsql AS $$
   BEGIN
     DELETE FROM memory_vectors v USING gone g WHERE v.tenant_id = g.tenant_id AND v.bank = g.bank AND v.memory = g.number;
     RETURN NULL;
   END $$`,
  `CREATE OR REPLACE TRIGGER forget_memory_vectors AFTER DELETE ON memories REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
   EXECUTE FUNCTION forget_memory_vectors()`,
]

export interface Near {
  readonly memory: number
  /** Cosine, 0 to 1. */
  readonly similarity: number
}

/** The vectors of memories, stored with pgvector. They are made after the memories were written, and compared with the vectors of questions. */
export class VectorList {
  readonly #database: Database
  readonly #embeddings: Embeddings
  readonly #log: Pick<FastifyBaseLogger, 'info' | 'warn'>
  #open = false

  constructor(database: Database, embeddings: Embeddings, log: Pick<FastifyBaseLogger, 'info' | 'warn'>) {
    this.#database = database
    this.#embeddings = embeddings
    this.#log = log
  }

  /** True if the tables exist, so that vectors can be compared. */
  get isOpen(): boolean {
    return this.#open
  }
  /** Creates the tables. Called once the extension is available. */
  async open(): Promise<void> {
    await this.#database.systemBatch([
      { text: `SELECT pg_advisory_xact_lock(hashtextextended('memory_vectors', 0))` },
      ...tables.map((text) => ({ text })),
    ])
    this.#open = true
  }
  /** The memories nearest to a question. Empty if the provider cannot be reached. */
  async near(tenantId: string, bank: number, whose: Whose, question: string): Promise<readonly Near[]> {
    if (!this.#open || !this.#embeddings.has(tenantId)) return []
    const vector = await this.#embeddings.ofQuestion(question)
    if (!vector) return []
    const { endUserId = null, shared = false } = whose
    const find = {
      text: `WITH compared AS (
               SELECT v.memory, v.embedding FROM memory_vectors v JOIN memories m ON m.tenant_id = $1 AND m.number = v.memory
               WHERE v.tenant_id = $1 AND v.bank = $2 AND v.model = $3 AND ${alive} AND ${isOf('$4', '$5')}
               ORDER BY v.memory DESC LIMIT ${mostCompared})
             SELECT memory::float8 AS memory, 1 - (embedding <=> $6::vector) AS similarity FROM compared
             ORDER BY embedding <=> $6::vector LIMIT ${mostNear}`,
      values: [tenantId, bank, this.#embeddings.model, endUserId, shared, `[${vector.join(',')}]`],
    }
    const [rows] = await this.#database
      .as('reads')
      .batch<[Near[]]>(tenantId, [find])
      .catch((err: unknown): [Near[]] => {
        // The usual cause is a new version of the model, whose vectors have another length.
        this.#log.warn({ err, tenant: tenantId }, 'a search continues without vectors')
        return [[]]
      })
    return rows.filter(({ similarity }) => similarity >= leastSimilar)
  }
  /** Embeds this tenant's memories that have no vector yet. Resolves to the number of embedded memories. */
  async embed(tenantId: string, signal: AbortSignal): Promise<number> {
    if (!this.#open || !this.#embeddings.has(tenantId)) return 0
    const { model } = this.#embeddings
    const reads = this.#database.as('reads')
    let embedded = 0
    while (!signal.aborted) {
      const due = {
        name: 'memory-vectors-due',
        text: `SELECT m.number::float8 AS number, m.bank, m.content FROM memories m WHERE m.tenant_id = $1 AND ${alive} AND NOT EXISTS (
                 SELECT FROM memory_vectors v WHERE v.tenant_id = $1 AND v.bank = m.bank AND v.model = $2 AND v.memory = m.number)
               ORDER BY m.created_at DESC LIMIT ${atOnce}`,
        values: [tenantId, model],
      }
      const [rows] = await reads.batch<[{ number: number; bank: number; content: string }[]]>(tenantId, [due])
      if (rows.length === 0) break
      const vectors = await this.#embeddings.ofTexts(rows.map(({ content }) => content))
      const keep = {
        name: 'memory-vectors-keep',
        text: `INSERT INTO memory_vectors (tenant_id, memory, bank, model, embedding)
               SELECT $1, n.number, n.bank, $5, n.embedding::vector FROM unnest($2::bigint[], $3::int[], $4::text[]) AS n (number, bank, embedding)
               WHERE EXISTS (SELECT FROM memories m WHERE m.tenant_id = $1 AND m.number = n.number) ON CONFLICT DO NOTHING`,
        values: [
          tenantId,
          rows.map(({ number }) => number),
          rows.map(({ bank }) => bank),
          vectors.map((vector) => `[${vector.join(',')}]`),
          model,
        ],
      }
      // Deletions take the same lock, so no vector is stored for a memory that is being deleted.
      await reads.batch(tenantId, [{ ...lock, values: [tenantId] }, keep])
      embedded += rows.length
    }
    return embedded
  }
}
