import { randomBytes } from 'node:crypto'
import type { Database, TenantTx } from '#contracts/database'
import type { TenantLimits } from '#contracts/limits'
import type { Listing, Page } from '#contracts/paging'
import type { Told } from '#contracts/webhooks'
import { type ListSql, readList } from '#kit/lists'
import type { Delivery, DeliveryState } from './schema.ts'

interface Row {
  id: string
  /** The run whose end the message reports. Null: the message has its content in `body`. */
  run_id: string | null
  body: string | null
  url: string
  state: DeliveryState
  attempts: number
  next_at: string
  last_status: number | null
  last_error: string | null
  created_at: string
  ended_at: string | null
}
const columns = 'id, run_id, body, url, state, attempts, next_at, last_status, last_error, created_at, ended_at'

const toDelivery = (row: Row): Delivery => ({
  id: row.id,
  type: row.body === null ? 'run.finished' : typeOf(row.body),
  ...(row.run_id === null ? {} : { runId: row.run_id }),
  url: row.url,
  state: row.state,
  attempts: row.attempts,
  nextAttemptAt: row.state === 'pending' ? row.next_at : null,
  lastStatus: row.last_status,
  lastError: row.last_error,
  createdAt: row.created_at,
  endedAt: row.ended_at,
})

const typeOf = (body: string): string => String((JSON.parse(body) as { type?: unknown }).type)

/** A message that this process took and must settle. */
export interface TakenMessage {
  readonly id: string
  /** The run whose end the message reports. Null: `body` has the content. */
  readonly runId: string | null
  readonly body: string | null
  readonly url: string
  /** This attempt, counted from 1. */
  readonly attempt: number
}

export type Settled =
  | { readonly state: 'delivered' | 'dead'; readonly status: number | undefined; readonly error: string | undefined }
  | {
      readonly state: 'pending'
      readonly status: number | undefined
      readonly error: string | undefined
      readonly inMs: number
    }

const take = {
  name: 'webhooks-take',
  text: `
    UPDATE webhook_deliveries SET attempts = attempts + 1, next_at = now() + $3 * interval '1 millisecond'
    WHERE tenant_id = $1 AND id IN (
      SELECT id FROM webhook_deliveries WHERE tenant_id = $1 AND state = 'pending' AND next_at <= now()
      ORDER BY next_at LIMIT $2 FOR UPDATE SKIP LOCKED)
    RETURNING id, run_id, body, url, attempts`,
}
const soonest = {
  name: 'webhooks-soonest',
  text: `SELECT (extract(epoch FROM min(next_at) - now()) * 1000)::float8 AS in_ms
         FROM webhook_deliveries WHERE tenant_id = $1 AND state = 'pending'`,
}
// Only the attempt that holds the lease may settle the message: another attempt has overtaken a slower one.
const settle = {
  name: 'webhooks-settle',
  text: `
    UPDATE webhook_deliveries SET state = $4, last_status = $5, last_error = $6,
      next_at = now() + $7 * interval '1 millisecond', ended_at = CASE WHEN $4 = 'pending' THEN NULL ELSE now() END
    WHERE tenant_id = $1 AND id = $2 AND attempts = $3 AND state = 'pending'`,
}
const revive = {
  name: 'webhooks-revive',
  text: `
    UPDATE webhook_deliveries SET state = 'pending', attempts = 0, next_at = now(), ended_at = NULL
    WHERE tenant_id = $1 AND id = $2 AND state <> 'pending' RETURNING ${columns}`,
}

/** Bytes of a message besides its body, with its index entries. Messages about runs are counted with their runs. */
const bytesOfMessage = 500

export const createOutbox = (database: Database, limits?: Pick<TenantLimits, 'stored'>) => ({
  /** Adds a message that is sent after the transaction has committed. Every attempt posts the same bytes. */
  async add(tx: TenantTx, { url, type, data }: Told): Promise<void> {
    const body = JSON.stringify({ type, timestamp: new Date().toISOString(), data })
    await tx.query({
      text: `WITH told AS (
               INSERT INTO webhook_deliveries (tenant_id, id, url, body) VALUES ($1, $2, $3, $4) RETURNING tenant_id)
             SELECT pg_notify('webhooks', tenant_id) FROM told`,
      values: [tx.tenantId, `msg_${randomBytes(16).toString('hex')}`, url, body],
    })
    limits?.stored.add(tx.tenantId, bytesOfMessage + url.length + body.length)
  },
  /**
   * Takes due messages for a lease of `leaseMs`. `inMs`: when the next message is due; undefined: none is pending. Taking and settling belong to the
   * end of runs: they do not wait for what their tenant asks meanwhile.
   */
  async take(
    tenantId: string,
    limit: number,
    leaseMs: number,
  ): Promise<{ taken: TakenMessage[]; inMs: number | undefined }> {
    const [rows, [next]] = await database.as('claims').batch<[Row[], { in_ms: number | null }[]]>(tenantId, [
      { ...take, values: [tenantId, limit, leaseMs] },
      { ...soonest, values: [tenantId] },
    ])
    const taken = rows.map((row) => ({
      id: row.id,
      runId: row.run_id,
      body: row.body,
      url: row.url,
      attempt: row.attempts,
    }))
    return { taken, inMs: next?.in_ms ?? undefined }
  },
  settle: (tenantId: string, { id, attempt }: TakenMessage, how: Settled): Promise<unknown> =>
    database.as('claims').batch(tenantId, [
      {
        ...settle,
        values: [
          tenantId,
          id,
          attempt,
          how.state,
          how.status ?? null,
          how.error ?? null,
          how.state === 'pending' ? how.inMs : 0,
        ],
      },
    ]),
  async list(tenantId: string, filter: Page & { state?: DeliveryState; runId?: string }): Promise<Listing<Delivery>> {
    const list: ListSql = {
      columns,
      shown: columns,
      // The type of a message is in its body, which may be as large as the arguments of a call.
      bytes: 'coalesce(octet_length(body), 0) + octet_length(url) + 300',
      from: 'webhook_deliveries',
      where: 'tenant_id = $1 AND ($2::text IS NULL OR state = $2) AND ($3::text IS NULL OR run_id = $3)',
      values: [tenantId, filter.state ?? null, filter.runId ?? null],
      order: { created_at: 'timestamptz', id: 'text' },
      newestFirst: true,
      atOnce: 200,
    }
    return readList({ database, tenantId }, list, filter, toDelivery)
  },
  async find(tenantId: string, id: string): Promise<Delivery | undefined> {
    const find = {
      text: `SELECT ${columns} FROM webhook_deliveries WHERE tenant_id = $1 AND id = $2`,
      values: [tenantId, id],
    }
    const [rows] = await database.batch<[Row[]]>(tenantId, [find])
    return rows[0] && toDelivery(rows[0])
  },
  /** Makes an ended message due again, with the full number of attempts. Undefined: the id is unknown or the message is still pending. */
  async revive(tenantId: string, id: string): Promise<Delivery | undefined> {
    const [rows] = await database.batch<[Row[]]>(tenantId, [{ ...revive, values: [tenantId, id] }])
    return rows[0] && toDelivery(rows[0])
  },
})
export type Outbox = ReturnType<typeof createOutbox>
