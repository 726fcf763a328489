import { createHash } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import { definePlugin } from '#kernel'
import { Database } from '#contracts/database'
import { type Answer, type Attempt, Idempotency, idempotencyErrors, type Plan } from '#contracts/idempotency'
import { Sweep, tenantIds } from '#kit'

/** Remembers idempotency keys of clients for 24 h, so that a repeated request is carried out once. */
export default definePlugin({
  name: 'idempotency',
  errors: idempotencyErrors,
  requires: { database: Database },
  provides: { idempotency: Idempotency },
  async setup({ deps, log, onStart, onStop }) {
    const keys = createKeys(deps.database, log)
    if (!deps.database.absent) onStart(async () => keys.start())
    onStop(() => keys.stop())
    return { idempotency: keys }
  },
})

// The key of a process that died is free after at most 12 s. A live process renews its keys three times within a lease.
const beatMs = 4_000
const leaseSeconds = 12
const keptSeconds = 24 * 3_600
const cleanMs = 10 * 60_000
const retryAfterSeconds = '2'

export interface Keys extends Idempotency {
  /** Renews the leases of the keys whose requests are under way. */
  beat(): Promise<void>
  /** Deletes expired keys of all tenants. Resolves to their number. */
  clean(): Promise<number>
  start(): void
  stop(): Promise<void>
}

export function createKeys(database: Database, log: FastifyBaseLogger): Keys {
  const holding = new Set<Held>()
  const stopped = new AbortController()

  const settle = async (held: Held, write: () => Promise<void>): Promise<void> => {
    holding.delete(held)
    await write().catch((err: unknown) => {
      // The lease expires by itself. A repeated request then joins the work that was begun.
      log.warn({ err }, 'an idempotency key could not be released; its lease runs out')
    })
  }
  const attemptOf = <P extends Plan>(held: Held, plan: P, repeated: boolean): Attempt<P> => {
    holding.add(held)
    return {
      plan,
      repeated,
      answer: undefined,
      end: (answer) => settle(held, () => releaseKey(database, held, answer)),
      forget: () => settle(held, () => forgetKey(database, held)),
    }
  }
  const renew = async (): Promise<void> => {
    for (const [tenantId, held] of Map.groupBy(holding, (one) => one.tenantId)) {
      await renewKeys(database, tenantId, held, leaseSeconds)
    }
  }
  const warn = (message: string) => (err: unknown) => log.warn({ err }, message)
  const beats = new Sweep(beatMs, renew, warn('idempotency keys could not be renewed'))
  const cleanings = new Sweep(cleanMs, () => keys.clean(), warn('expired idempotency keys could not be deleted'))
  const keys: Keys = {
    async begin<P extends Plan>({ tenantId, scope, key, body, plan }: Parameters<Idempotency['begin']>[0]) {
      const claim = { tenantId, scope, key, fingerprint: fingerprint(body), plan, leaseSeconds, keptSeconds }
      // A concurrent request may write the key during the first statement; the second one finds it.
      const row = (await claimKey(database, claim)) ?? (await claimKey(database, claim))
      if (row && !row.same) throw idempotencyErrors.idempotencyKeyReused()
      if (row?.claimed) return attemptOf({ tenantId, scope, key, attempt: row.attempt }, row.plan as P, row.repeated)
      if (!row?.answer) throw idempotencyErrors.idempotencyInFlight({ headers: { 'retry-after': retryAfterSeconds } })
      const nothing = async (): Promise<void> => {}
      return { plan: row.plan as P, repeated: true, answer: row.answer, end: nothing, forget: nothing }
    },
    beat: () => beats.now(),
    async clean() {
      let count = 0
      for await (const tenantId of tenantIds(database, 'stored')) {
        if (stopped.signal.aborted) break
        count += await cleanKeys(database, tenantId)
      }
      return count
    },
    start() {
      beats.start()
      cleanings.start()
    },
    async stop() {
      stopped.abort()
      await Promise.all([beats.stop(), cleanings.stop()])
    },
  }
  return keys
}

/** SHA-256 of a JSON value. The order of its members does not matter. */
const fingerprint = (body: unknown): Buffer => createHash('sha256').update(canonical(body)).digest()

// Recursion is safe: bodies nest at most 64 levels, since the kernel refuses deeper ones before they are parsed.
function canonical(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`
  if (typeof value !== 'object' || value === null) return JSON.stringify(value) ?? 'null'
  const members = Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1))
  return `{${members.map(([name, member]) => `${JSON.stringify(name)}:${canonical(member)}`).join(',')}}`
}

/** The claim of a request on a key. `attempt` is a fencing token: a write with an older attempt changes nothing. */
interface Held {
  readonly tenantId: string
  readonly scope: string
  readonly key: string
  readonly attempt: number
}

interface ClaimRow {
  /** This request holds the key until it ends. */
  readonly claimed: boolean
  readonly same: boolean
  readonly plan: Plan
  readonly attempt: number
  readonly repeated: boolean
  readonly answer: Answer | null
}

const lease = `now() + $6 * interval '1 second'`
const claim = {
  name: 'idempotency-claim',
  text: `WITH claimed AS (
           INSERT INTO idempotency_keys AS held (tenant_id, scope, key, fingerprint, plan, locked_until, expires_at)
           VALUES ($1, $2, $3, $4::bytea, $5::json, ${lease}, now() + $7 * interval '1 second')
           ON CONFLICT (tenant_id, scope, key) DO UPDATE SET
             locked_until = EXCLUDED.locked_until,
             attempt = held.attempt + 1,
             fingerprint = EXCLUDED.fingerprint,
             plan = CASE WHEN held.expires_at > now() THEN held.plan ELSE EXCLUDED.plan END,
             first_attempt = CASE WHEN held.expires_at > now() THEN held.first_attempt ELSE held.attempt + 1 END,
             expires_at = CASE WHEN held.expires_at > now() THEN held.expires_at ELSE EXCLUDED.expires_at END,
             answer = NULL
           WHERE (held.locked_until IS NULL OR held.locked_until <= now())
             AND (held.expires_at <= now() OR (held.fingerprint = EXCLUDED.fingerprint AND held.answer IS NULL))
           RETURNING plan, attempt, attempt > first_attempt AS repeated)
         SELECT true AS claimed, true AS same, plan, attempt, repeated, NULL::json AS answer FROM claimed
         UNION ALL
         SELECT false, fingerprint = $4::bytea, plan, attempt, true, answer FROM idempotency_keys
         WHERE tenant_id = $1 AND scope = $2 AND key = $3 AND NOT EXISTS (SELECT FROM claimed)`,
}

interface NewClaim {
  readonly tenantId: string
  readonly scope: string
  readonly key: string
  readonly fingerprint: Buffer
  readonly plan: Plan
  readonly leaseSeconds: number
  readonly keptSeconds: number
}

/** Claims a key, or finds the claim of another request. Undefined: a concurrent request wrote the key during this statement, so ask again. */
async function claimKey(database: Database, claimed: NewClaim): Promise<ClaimRow | undefined> {
  const { tenantId, scope, key, fingerprint, plan, leaseSeconds, keptSeconds } = claimed
  const values = [tenantId, scope, key, fingerprint, JSON.stringify(plan), leaseSeconds, keptSeconds]
  const [row] = await database.unit<ClaimRow>(tenantId, { ...claim, values }, { order: orderOf(claimed) })
  return row
}

const orderOf = ({ scope, key }: Pick<Held, 'scope' | 'key'>): string => `${scope}\n${key}`
const mine = `tenant_id = $1 AND scope = $2 AND key = $3 AND attempt = $4`
const valuesOf = ({ tenantId, scope, key, attempt }: Held): unknown[] => [tenantId, scope, key, attempt]

const release = {
  name: 'idempotency-release',
  text: `UPDATE idempotency_keys SET locked_until = NULL, answer = $5::json WHERE ${mine}`,
}

async function releaseKey(database: Database, held: Held, answer: Answer | undefined): Promise<void> {
  const values = [...valuesOf(held), answer === undefined ? null : JSON.stringify(answer)]
  await database.unit(held.tenantId, { ...release, values }, { order: orderOf(held) })
}

const forget = { name: 'idempotency-forget', text: `DELETE FROM idempotency_keys WHERE ${mine}` }

async function forgetKey(database: Database, held: Held): Promise<void> {
  await database.unit(held.tenantId, { ...forget, values: valuesOf(held) }, { order: orderOf(held) })
}

// The keys are named twice: by the arrays their rows are found, each by its key, and the join says which of them are held. By the join alone all
// keys of the tenant are read.
const renew = {
  name: 'idempotency-renew',
  text: `UPDATE idempotency_keys kept SET locked_until = now() + $5 * interval '1 second'
         FROM unnest($2::text[], $3::text[], $4::integer[]) AS held (scope, key, attempt)
         WHERE kept.tenant_id = $1 AND kept.scope = ANY ($2) AND kept.key = ANY ($3) AND kept.scope = held.scope AND kept.key = held.key AND kept.attempt = held.attempt
           AND kept.locked_until IS NOT NULL`,
}

const renewKeys = (
  database: Database,
  tenantId: string,
  held: readonly Held[],
  leaseSeconds: number,
): Promise<unknown> => {
  const columns = [held.map((h) => h.scope), held.map((h) => h.key), held.map((h) => h.attempt)]
  return database.batch(tenantId, [{ ...renew, values: [tenantId, ...columns, leaseSeconds] }])
}

/** Rows that one statement deletes, so that a backlog blocks nobody. */
const cleanLimit = 500
// What is deleted is what was locked, and no other expired row is looked at.
const clean = {
  name: 'idempotency-clean',
  text: `WITH old AS MATERIALIZED (
           SELECT ctid, expires_at FROM idempotency_keys
           WHERE tenant_id = $1 AND expires_at <= now() AND (locked_until IS NULL OR locked_until <= now())
           ORDER BY expires_at LIMIT ${cleanLimit} FOR UPDATE SKIP LOCKED)
         DELETE FROM idempotency_keys
         WHERE tenant_id = $1 AND expires_at <= (SELECT max(expires_at) FROM old) AND ctid = ANY (ARRAY(SELECT ctid FROM old)) RETURNING 1`,
}

/** Deletes a tenant's expired keys. Any number of processes may do so at once. */
async function cleanKeys(database: Database, tenantId: string): Promise<number> {
  let count = 0
  for (;;) {
    const [rows] = await database.batch<[object[]]>(tenantId, [{ ...clean, values: [tenantId] }])
    count += rows.length
    if (rows.length < cleanLimit) return count
  }
}
