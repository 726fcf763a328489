import { Counter, Gauge, type Registry } from 'prom-client'
import type { RetentionName } from '#contracts/retention'

/** Metrics of retention, as `/metrics` of the process that did the work shows them. */
export class Figures {
  readonly #deleted: Counter
  readonly #oldest: Gauge
  readonly #success: Gauge
  #ages = new Map<RetentionName, number>()

  constructor(registry: Registry) {
    const registers = [registry]
    this.#deleted = new Counter({
      name: 'agent_orc_retention_deleted_total',
      help: 'What was deleted because it expired or had to be erased; for tenants the deleted rows, by table.',
      labelNames: ['kind'],
      registers,
    })
    this.#oldest = new Gauge({
      name: 'agent_orc_retention_oldest_seconds',
      help: 'Age of the oldest record of all tenants with a retention period for its kind, at the last pass.',
      labelNames: ['kind'],
      registers,
    })
    this.#success = new Gauge({
      name: 'agent_orc_retention_last_success_seconds',
      help: 'Time of the last pass of this process without a failure, in seconds since 1970; 0 before the first.',
      registers,
    })
  }

  readonly deleted = (rows: Readonly<Record<string, number>>): void => {
    for (const [kind, count] of Object.entries(rows)) if (count > 0) this.#deleted.inc({ kind }, count)
  }
  begin(): void {
    this.#ages = new Map()
  }
  oldest(kind: RetentionName, seconds: number): void {
    this.#ages.set(kind, Math.max(seconds, this.#ages.get(kind) ?? 0))
  }
  end(whole: boolean): void {
    for (const [kind, seconds] of this.#ages) this.#oldest.set({ kind }, seconds)
    if (whole) this.#success.setToCurrentTime()
  }
}
