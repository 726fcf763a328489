import type { Socket } from 'node:net'
import fp from 'fastify-plugin'

interface Patience {
  /** Milliseconds in which a client may take nothing of its answer. */
  readonly ms: number
  /** What is written at once counts as taken only when all of it is, so it gets the time that a client of this speed needs. */
  readonly bytesPerMs: number
  readonly lookEveryMs: number
}
const usual: Patience = { ms: 30_000, bytesPerMs: 16, lookEveryMs: 5_000 }

type Connection = Pick<Socket, 'writableLength' | 'bytesWritten' | 'destroy'>

/** What a connection has taken, and for how many milliseconds nothing more. */
interface Seen {
  readonly taken: number
  readonly idleMs: number
}

/** Finds connections whose clients do not read. */
export class SlowReaders {
  readonly #connections: Iterable<Connection>
  readonly #seen = new WeakMap<Connection, Seen>()
  readonly #patience: Patience
  #looked = 0

  constructor(connections: Iterable<Connection>, patience: Patience) {
    this.#connections = connections
    this.#patience = patience
  }
  /** Ends those that took nothing for too long. `now`: milliseconds of a clock that only goes forward. */
  look(now: number): void {
    const { ms, bytesPerMs, lookEveryMs } = this.#patience
    // Time in which this process itself stood still is not the clients'.
    const step = Math.min(now - this.#looked, 2 * lookEveryMs)
    this.#looked = now
    for (const connection of this.#connections) {
      const waiting = connection.writableLength
      const taken = connection.bytesWritten - waiting
      const before = this.#seen.get(connection)
      const idleMs = waiting > 0 && before?.taken === taken ? before.idleMs + step : 0
      this.#seen.set(connection, { taken, idleMs })
      if (idleMs > ms + waiting / bytesPerMs) connection.destroy()
    }
  }
}

/**
 * Ends connections whose clients do not read: an answer that nobody takes would be held in memory for as long as its client likes. All connections
 * are looked at now and then, so that it costs requests nothing.
 */
export const slowReaders = fp<{ readonly connections: ReadonlySet<Socket>; readonly patience?: Patience }>(
  async (app, { connections, patience = usual }) => {
    const readers = new SlowReaders(connections, patience)
    const timer = setInterval(() => readers.look(performance.now()), patience.lookEveryMs).unref()
    app.addHook('onClose', async () => clearInterval(timer))
  },
  { name: 'agent-orc-slow-readers' },
)
