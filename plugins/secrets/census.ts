import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { Counter, Gauge, type Registry } from 'prom-client'
import type { Database, Statement } from '#contracts/database'
import type { Keyring } from './envelope.ts'
import { sealedByMasterKey, type SealedColumn, sealedColumns } from './sealed.ts'
import { warnedBefore, withCurrent } from './store.ts'

export interface SecretMetrics {
  readonly resolved: Counter<'outcome'>
  /** Secrets of all tenants, by `state`: `ok`, `expires_soon`, `expired`. */
  readonly stored: Gauge<'state'>
  /** Stored values of all tenants, by `master_key`: `current`, `previous`, `unknown`. */
  readonly values: Gauge<'master_key'>
}

export const createSecretMetrics = (metrics: Registry): SecretMetrics => ({
  resolved: new Counter({
    name: 'secrets_resolved_total',
    help: 'Requests for secrets in plain text, by outcome.',
    labelNames: ['outcome'],
    registers: [metrics],
  }),
  stored: new Gauge({
    name: 'secrets_stored',
    help: 'Secrets of all tenants at the last count; expires_soon is within 14 days.',
    labelNames: ['state'],
    registers: [metrics],
  }),
  values: new Gauge({
    name: 'secrets_values',
    help: 'Stored values of all tenants at the last count, by the master key that encrypts them.',
    labelNames: ['master_key'],
    registers: [metrics],
  }),
})

interface StateRow {
  state: 'ok' | 'expires_soon' | 'expired'
  count: number
}
interface KeyRow {
  master_key: string
  count: number
}

const byState = (tenantId: string): Statement => ({
  name: 'secrets_by_state',
  text: `SELECT CASE WHEN v.expires_at <= now() THEN 'expired' WHEN v.expires_at <= now() + ${warnedBefore} THEN 'expires_soon' ELSE 'ok' END
           AS state, count(*)::int AS count
         FROM ${withCurrent} WHERE s.tenant_id = $1 GROUP BY 1`,
  values: [tenantId],
})
const byMasterKey = (tenantId: string): Statement => ({
  name: 'secrets_by_master_key',
  text: 'SELECT master_key, count(*)::int AS count FROM secret_versions WHERE tenant_id = $1 GROUP BY 1',
  values: [tenantId],
})

/** All tenants with rows, including deleted ones: until a tenant is erased, its values need their master key. */
export async function tenantsOf(database: Database): Promise<readonly string[]> {
  const select = { name: 'secrets_tenants', text: 'SELECT id FROM tenants WHERE erased_at IS NULL ORDER BY id' }
  const [rows] = await database.systemBatch<[{ id: string }[]]>([select])
  return rows.map(({ id }) => id)
}

/** Values that other plugins have sealed count as well. */
const byMasterKeys = (tenantId: string, columns: readonly SealedColumn[]): readonly Statement[] => [
  byMasterKey(tenantId),
  ...columns.map((column) => sealedByMasterKey(tenantId, column)),
]

/** How many values of a tenant each master key encrypts. */
export async function countByMasterKey(
  database: Database,
  tenantId: string,
  columns: readonly SealedColumn[],
): Promise<ReadonlyMap<string, number>> {
  const counts = new Map<string, number>()
  const found = await database.batch<KeyRow[][]>(tenantId, byMasterKeys(tenantId, columns))
  for (const { master_key: id, count } of found.flat()) counts.set(id, (counts.get(id) ?? 0) + count)
  return counts
}

/** The pause between two counts, and between two tenants of one count. */
const restMs = 10 * 60_000
const stepMs = 20

/**
 * Counts the secrets of all tenants in the background, for metrics. Row security shows only one tenant at a time; nothing waits
 * for it.
 */
export function startCensus(
  database: Database,
  keyring: Keyring,
  { stored, values }: SecretMetrics,
  log: Pick<FastifyBaseLogger, 'warn'>,
): () => void {
  const stopping = new AbortController()
  const rest = (ms: number): Promise<unknown> => sleep(ms, undefined, { signal: stopping.signal, ref: false })
  const reads = database.as('reads')
  const nameOf = (id: string): string =>
    id === keyring.current ? 'current' : id === keyring.previous ? 'previous' : 'unknown'
  const count = async (): Promise<void> => {
    const states = new Map([
      ['ok', 0],
      ['expires_soon', 0],
      ['expired', 0],
    ])
    const keys = new Map([
      ['current', 0],
      ['previous', 0],
      ['unknown', 0],
    ])
    const columns = await sealedColumns(reads)
    for (const tenantId of await tenantsOf(reads)) {
      const [found, ...wrapped] = await reads.batch<[StateRow[], ...KeyRow[][]]>(tenantId, [
        byState(tenantId),
        ...byMasterKeys(tenantId, columns),
      ])
      for (const row of found) states.set(row.state, states.get(row.state)! + row.count)
      for (const row of wrapped.flat()) keys.set(nameOf(row.master_key), keys.get(nameOf(row.master_key))! + row.count)
      await rest(stepMs)
    }
    for (const [state, many] of states) stored.set({ state }, many)
    for (const [key, many] of keys) values.set({ master_key: key }, many)
  }
  const rounds = async (): Promise<void> => {
    while (!stopping.signal.aborted) {
      await count().catch((err: unknown) => {
        if (!stopping.signal.aborted) log.warn({ err }, 'the secrets could not be counted')
      })
      await rest(restMs)
    }
  }
  rounds().catch(() => {})
  return () => stopping.abort()
}
