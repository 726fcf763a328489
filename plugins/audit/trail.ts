import { invalidField, unavailable } from '#kernel'
import type { AuditedWrite, AuditEntry, AuditOutcome, AuditTrail } from '#contracts/audit'
import type { Database } from '#contracts/database'
import { newId } from '#contracts/ids'
import type { TenantLimits } from '#contracts/limits'
import type { Listing, Page } from '#contracts/paging'
import { type ListSql, readList } from '#kit/lists'
import type { ListedEntry } from './schema.ts'

/** How many characters of a path or a target are kept, so that clients cannot fill the log with long texts. */
const maxText = 1_024
/** Cuts a text and replaces NULs, which PostgreSQL cannot store. An escaped NUL in a path becomes a real one in a parameter. */
const storable = (text: string): string => text.slice(0, maxText).replaceAll('\0', '\uFFFD')

/** Bytes of an entry and its outcome besides their texts: two rows with their index entries. */
const bytesOfEntry = 512

/** Creates the trail. Entries count towards the stored bytes of their tenant, but no audited write is refused because the tenant's store is full. */
export function createAuditTrail(
  database: Database,
  log: { warn(fields: object, message: string): void },
  limits?: Pick<TenantLimits, 'stored'>,
): AuditTrail {
  return {
    async begin({ target, request, ...write }) {
      const entry = { tenantId: write.tenantId, id: newId('aud') }
      await insertEntry(database, entry.id, {
        ...write,
        ...(target === undefined ? {} : { target: storable(target) }),
        ...(request ? { request: { ...request, path: storable(request.path) } } : {}),
      }).catch((error: unknown) => {
        throw notRecorded(error)
      })
      const texts = (target?.length ?? 0) + (request?.path.length ?? 0)
      limits?.stored.add(write.tenantId, bytesOfEntry + Math.min(texts, 2 * maxText))
      return entry
    },
    async end(entry, { status, target, detail }) {
      const outcome = {
        status,
        ...(detail ? { detail } : {}),
        ...(target === undefined ? {} : { target: storable(target) }),
      }
      await insertOutcome(database, entry, outcome).catch((err: unknown) =>
        log.warn({ err, entry: entry.id, status }, 'the outcome of an audited write could not be recorded'),
      )
    },
  }
}

const begin = {
  name: 'audit-begin',
  text: `INSERT INTO audit_entries
           (tenant_id, id, actor_key, actor_role, action, target, method, path, request_id, remote_address)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
}
const end = {
  name: 'audit-end',
  text: `INSERT INTO audit_outcomes (tenant_id, entry_id, status, target, detail) VALUES ($1, $2, $3, $4, $5::jsonb)`,
}

async function insertEntry(database: Database, id: string, write: AuditedWrite): Promise<void> {
  const { tenantId, actor, action, target, request } = write
  const values = [tenantId, id, actor.keyId, actor.role, action, target ?? null]
  const asked = [request?.method, request?.path, request?.id, request?.remoteAddress]
  await database.unit(tenantId, { ...begin, values: [...values, ...asked.map((text) => text ?? null)] })
}

async function insertOutcome(database: Database, entry: AuditEntry, outcome: AuditOutcome): Promise<void> {
  const { tenantId, id } = entry
  await database.unit(tenantId, {
    ...end,
    values: [
      tenantId,
      id,
      outcome.status,
      outcome.target ?? null,
      outcome.detail ? JSON.stringify(outcome.detail) : null,
    ],
  })
}

interface Row {
  id: string
  at: string
  actor_key: string
  actor_role: string
  action: string
  target: string | null
  method: string | null
  path: string | null
  request_id: string | null
  remote_address: string | null
  status: number | null
  detail: Record<string, unknown> | null
}

interface EntryFilter extends Page {
  readonly actor?: string
  readonly action?: string
  readonly target?: string
  /** Part of the action, the target or the path; upper and lower case are the same. */
  readonly q?: string
  readonly from?: Date
  readonly to?: Date
}

const columns = `e.id, e.at, e.actor_key, e.actor_role, e.action, coalesce(o.target, e.target) AS target,
  e.method, e.path, e.request_id, e.remote_address, o.status, o.detail`
// `position` instead of LIKE, so that `%` and `_` in the text are no patterns.
const has = (text: string): string => `position(lower($5) IN lower(coalesce(${text}, ''))) > 0`
const matches = `e.tenant_id = $1 AND ($2::text IS NULL OR e.actor_key = $2) AND ($3::text IS NULL OR e.action = $3)
    AND ($4::text IS NULL OR coalesce(o.target, e.target) = $4)
    AND ($5::text IS NULL OR ${has('e.action')} OR ${has('coalesce(o.target, e.target)')} OR ${has('e.path')})
    AND ($6::timestamptz IS NULL OR e.at >= $6) AND ($7::timestamptz IS NULL OR e.at < $7)`

/** Lists entries, newest first. */
export async function listEntries(
  database: Database,
  tenantId: string,
  filter: EntryFilter,
): Promise<Listing<ListedEntry>> {
  const { actor, action, target, q, from, to } = filter
  const values = [tenantId, ...[actor, action, target, q, from, to].map((value) => value ?? null)]
  const list: ListSql = {
    columns,
    from: 'audit_entries e LEFT JOIN audit_outcomes o ON o.tenant_id = e.tenant_id AND o.entry_id = e.id',
    where: matches,
    values,
    order: { 'e.at': 'timestamptz', 'e.id': 'text' },
    newestFirst: true,
    // Each entry has at most 16 KB, because paths and targets are cut when they are written.
    atOnce: 64,
  }
  // These filters have no index, and a search of the log must not leave entries out.
  const work = [actor, action, target, q].some((one) => one !== undefined) ? 'figures' : 'reads'
  return readList({ database, tenantId, work }, list, filter, toEntry)
}

const toEntry = (row: Row): ListedEntry => ({
  id: row.id,
  at: row.at,
  actor: { keyId: row.actor_key, role: row.actor_role },
  action: row.action,
  target: row.target,
  method: row.method,
  path: row.path,
  requestId: row.request_id,
  remoteAddress: row.remote_address,
  status: row.status,
  ...(row.detail ? { detail: row.detail } : {}),
})

const notRecorded = (cause: unknown) =>
  unavailable({
    message: 'This write could not be put on record in the audit log, so it was not done; try again shortly.',
    retryable: true,
    cause,
  })
export const noSuchTime = (name: string) => invalidField(`querystring/${name}`, 'must be a time that exists')
