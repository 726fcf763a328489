import { Counter, Gauge, Histogram, type Registry } from 'prom-client'

type Provider = 'model' | 'embeddings'

/** Metrics of writes, searches and recalls, and of requests to the model and embedding providers. */
export class Metrics {
  readonly #writes: Counter<'outcome'>
  readonly #searches: Histogram<'caller'>
  readonly #recalled: Counter<'outcome'>
  readonly #asked: Counter<'provider' | 'outcome'>
  readonly #lists: Gauge<'list'>

  constructor(registry: Registry) {
    const registers = [registry]
    this.#writes = new Counter({
      name: 'memory_writes_total',
      help: 'Memories submitted for storing, by outcome: stored, duplicate or junk.',
      labelNames: ['outcome'],
      registers,
    })
    this.#searches = new Histogram({
      name: 'memory_search_seconds',
      help: 'Searches of the memory bank, by origin: the API, a tool or a first message.',
      labelNames: ['caller'],
      buckets: [0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.5, 2],
      registers,
    })
    this.#recalled = new Counter({
      name: 'memory_recalls_total',
      help: 'First messages, by outcome: memories added (some), no match (none), or none added because of a failure (failed).',
      labelNames: ['outcome'],
      registers,
    })
    this.#asked = new Counter({
      name: 'memory_provider_requests_total',
      help: 'Requests to the model and the embedding provider of the memory bank.',
      labelNames: ['provider', 'outcome'],
      registers,
    })
    this.#lists = new Gauge({
      name: 'memory_search_list',
      help: '1 for each optional list that searches have: similar (pg_trgm), meaning (pgvector and an embedding provider).',
      labelNames: ['list'],
      registers,
    })
  }

  written(outcome: 'stored' | 'duplicate' | 'junk'): void {
    this.#writes.inc({ outcome })
  }
  recalled(outcome: 'some' | 'none' | 'failed'): void {
    this.#recalled.inc({ outcome })
  }
  asked(provider: Provider, outcome: 'ok' | 'failed'): void {
    this.#asked.inc({ provider, outcome })
  }
  has(list: 'similar' | 'meaning', present: boolean): void {
    this.#lists.set({ list }, present ? 1 : 0)
  }
  async searched<T>(caller: 'api' | 'tool' | 'message', work: () => Promise<T>): Promise<T> {
    const end = this.#searches.startTimer({ caller })
    try {
      return await work()
    } finally {
      end()
    }
  }
}
