import type { Database } from '#contracts/database'
import type { EndReason, RunStore } from '#contracts/run-store'
import { handedOver } from './orphans.ts'
import { prepared } from './sql.ts'

/** Every process hears every signal; the one that executes the run, or has room for it, acts on it. */
const asks = 'run_asks'
const leftTo = 'run_handovers'
const notify = { name: 'run-ask', text: 'SELECT pg_notify($1, $2)' }

export const handOverStatement = prepared(
  'run-hand-over',
  `WITH run AS (
     UPDATE runs SET claim_owner = '${handedOver}'
     WHERE tenant_id = :tenant AND id = :run AND finished_at IS NULL AND claim_epoch = :epoch RETURNING session_id
   ), session AS (
     UPDATE sessions SET claim_owner = '${handedOver}'
     WHERE tenant_id = :tenant AND id = (SELECT session_id FROM run) AND claim_run = :run
   )
   SELECT pg_notify('${leftTo}', :tenant) FROM run`,
)

/** Conductors talk through the database they share, which needs no Redis. */
export interface Signals extends Pick<RunStore, 'ask' | 'onAsked'> {
  /** Begins to listen, unless it does already. Rejects while the database is away. */
  open(onLeft: (tenantId: string) => void): Promise<void>
  close(): Promise<void>
}

export function createSignals(db: Database): Signals {
  const listeners: Parameters<RunStore['onAsked']>[0][] = []
  const stops: (() => Promise<void>)[] = []
  const asked = (payload: string): void => {
    const [tenantId, runId, code, message] = JSON.parse(payload) as [string, string, string, string]
    for (const listener of listeners) listener(tenantId, runId, { code, message })
  }
  return {
    async ask(tenantId, runId, { code, message }: EndReason) {
      await db.systemBatch([{ ...notify, values: [asks, JSON.stringify([tenantId, runId, code, message])] }])
    },
    onAsked: (listener) => void listeners.push(listener),
    async open(onLeft) {
      if (stops.length === 0) stops.push(await db.listen(asks, asked))
      if (stops.length === 1) stops.push(await db.listen(leftTo, onLeft))
    },
    async close() {
      for (const stop of stops) await stop().catch(() => {})
    },
  }
}
