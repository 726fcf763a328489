import { Counter, Gauge, Histogram, type Registry } from 'prom-client'

/** Operations of the VirtualFS server by outcome, their duration, and bytes read and written. */
export class Metrics {
  readonly bytes: Counter<'direction'>
  readonly seconds: Histogram<'operation' | 'outcome'>

  constructor(registry: Registry, openSessions: () => number) {
    const registers = [registry]
    this.bytes = new Counter({
      name: 'vfs_bytes_total',
      help: 'Bytes of files, written (in) and read (out).',
      labelNames: ['direction'],
      registers,
    })
    this.seconds = new Histogram({
      name: 'vfs_operation_seconds',
      help: 'Operations on files: ok, refused (the caller is told why), or failed. A read counts as done when its first byte has come.',
      labelNames: ['operation', 'outcome'],
      buckets: [0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60],
      registers,
    })
    new Gauge({
      name: 'vfs_open_sessions',
      help: 'Sessions with a lease, of tenants seen since the process started.',
      registers,
      collect() {
        this.set(openSessions())
      },
    })
  }
}
