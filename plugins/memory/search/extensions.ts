import type { FastifyBaseLogger } from 'fastify'
import type { Database } from '#contracts/database'
import { retry } from '#kit'

/** The optional PostgreSQL extensions that are available. */
export interface Extensions {
  readonly trigrams: boolean
  readonly vectors: boolean
}

/** Queries that find an extension. The vector type is looked up by name, so it is found however it was installed. */
const looks = {
  pg_trgm: `SELECT 1 FROM pg_extension WHERE extname = 'pg_trgm'`,
  vector: `SELECT 1 WHERE to_regtype('vector') IS NOT NULL`,
}

/**
 * Creates the extensions that help a search, if the server has them and the database role may create them. Searches work without them, so a failure
 * is logged only once.
 */
export class ExtensionSet {
  readonly #database: Database
  readonly #log: Pick<FastifyBaseLogger, 'info' | 'warn'>
  readonly #wantsVectors: boolean
  #found: Extensions = { trigrams: false, vectors: false }
  #known = false

  /** `wantsVectors`: there is an embedding provider, so the vector extension is wanted. */
  constructor(database: Database, log: Pick<FastifyBaseLogger, 'info' | 'warn'>, wantsVectors: boolean) {
    this.#database = database
    this.#log = log
    this.#wantsVectors = wantsVectors
  }

  get found(): Extensions {
    return this.#found
  }
  /** The sentence of `/readyz` about missing extensions. Undefined if nothing is missing or if it is not known yet. */
  get lacking(): string | undefined {
    if (!this.#known) return undefined
    const { trigrams, vectors } = this.#found
    const without = [
      ...(trigrams ? [] : ['words spelled alike (pg_trgm)']),
      ...(vectors || !this.#wantsVectors ? [] : ['vectors (pgvector)']),
    ]
    return without.length === 0 ? undefined : `searches of memories go without ${without.join(' and ')}`
  }

  /** Tries until the database answers. Resolves to the available extensions. */
  async open(signal: AbortSignal): Promise<Extensions> {
    await retry(() => this.#open(), { firstMs: 500, longestMs: 10_000, signal })
    return this.#found
  }

  async #open(): Promise<void> {
    const trigrams = await this.#has('pg_trgm')
    const vectors = this.#wantsVectors && (await this.#has('vector'))
    this.#found = { trigrams, vectors }
    this.#known = true
    if (this.lacking) this.#log.warn({ trigrams, vectors }, this.lacking)
  }
  async #has(name: 'pg_trgm' | 'vector'): Promise<boolean> {
    const look = { text: looks[name] }
    const isThere = async (): Promise<boolean> => (await this.#database.systemBatch<[object[]]>([look]))[0].length > 0
    if (await isThere()) return true
    // Creation may fail because the database role lacks the right, the server lacks the extension, or another process was faster.
    await this.#database
      .systemBatch([{ text: `CREATE EXTENSION IF NOT EXISTS ${name}` }])
      .catch((err: unknown) => this.#log.info({ err, extension: name }, 'an extension could not be created'))
    return isThere()
  }
}
