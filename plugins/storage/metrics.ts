import { Counter, Histogram, type Registry } from 'prom-client'
import { isAppError } from '#kernel'

export type Operation = 'put' | 'get' | 'list' | 'delete'

/** Operations of the object store by outcome, their duration, and bytes read and written. */
export class Metrics {
  readonly bytes: Counter<'direction'>
  readonly #seconds: Histogram<'operation' | 'outcome'>

  constructor(registry: Registry) {
    const registers = [registry]
    this.bytes = new Counter({
      name: 'storage_bytes_total',
      help: 'Bytes of objects, written (in) and read (out).',
      labelNames: ['direction'],
      registers,
    })
    this.#seconds = new Histogram({
      name: 'storage_operation_seconds',
      help: 'Operations on the object store: ok, refused (the caller is told why), or failed.',
      labelNames: ['operation', 'outcome'],
      buckets: [0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60],
      registers,
    })
  }

  async timed<T>(operation: Operation, work: () => Promise<T>): Promise<T> {
    const end = this.#seconds.startTimer({ operation })
    try {
      const result = await work()
      end({ outcome: 'ok' })
      return result
    } catch (error) {
      end({ outcome: isAppError(error) && error.status < 500 ? 'refused' : 'failed' })
      throw error
    }
  }
}
