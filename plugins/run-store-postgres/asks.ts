import type { Database } from '#contracts/database'
import type { EndReason, RunStore } from '#contracts/run-store'

/** Every process hears every question; the one that executes the run acts on it. */
const channel = 'run_asks'
const notify = { name: 'run-ask', text: 'SELECT pg_notify($1, $2)' }

export interface Asks extends Pick<RunStore, 'ask' | 'onAsked'> {
  /** Begins to listen, unless it does already. Rejects while the database is away. */
  open(): Promise<void>
  close(): Promise<void>
}

/** Conductors ask each other to end runs through the database they share, which needs no Redis. */
export function createAsks(db: Database): Asks {
  const listeners: Parameters<RunStore['onAsked']>[0][] = []
  let stop: (() => Promise<void>) | undefined
  const heard = (payload: string): void => {
    const [tenantId, runId, code, message] = JSON.parse(payload) as [string, string, string, string]
    for (const listener of listeners) listener(tenantId, runId, { code, message })
  }
  return {
    async ask(tenantId, runId, { code, message }: EndReason) {
      await db.systemBatch([{ ...notify, values: [channel, JSON.stringify([tenantId, runId, code, message])] }])
    },
    onAsked: (listener) => void listeners.push(listener),
    async open() {
      stop ??= await db.listen(channel, heard)
    },
    async close() {
      await stop?.().catch(() => {})
    },
  }
}
