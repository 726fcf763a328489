import type { Database, Statement } from '#contracts/database'
import { type Listing, mostCounted, type Page } from '#contracts/paging'
import { isId } from '#contracts/ids'
import { type ListSql, readList } from '#kit/lists'
import { unknownMemory } from '../errors.ts'
import { type BankQuery, type ListQuery, type Memory, type Stats, timeOf } from '../schema.ts'
import { alive, columns, happened, isOf, type MemoryRow, toMemory } from './rows.ts'
import { lock } from './statements.ts'

/** Rows of one read. */
const atOnce = 100
/** The global view searches for `q` in this many of the newest memories. */
const mostLooked = 10_000
/** The most memories of a profile in the grouped view, and the most steps of a history. */
const mostGrouped = 100
const mostHistory = 200

const newest = {
  columns: 'm.*',
  shown: columns,
  named: 'm',
  from: 'memories m',
  order: { 'm.created_at': 'timestamptz', 'm.id': 'text' },
  newestFirst: true,
  atOnce,
  bytes: 'm.bytes + 512',
} as const satisfies Partial<ListSql>

/** The memories of one profile, newest first. */
export function listMemories(
  database: Database,
  tenantId: string,
  profile: string,
  { endUserId, shared, category, from, to, sessionId, includeSuperseded, ...page }: ListQuery,
): Promise<Listing<Memory>> {
  const list: ListSql = {
    ...newest,
    where: `m.tenant_id = $1 AND m.bank = (SELECT b.bank FROM memory_banks b WHERE b.tenant_id = $1 AND b.profile = $2) AND ${alive}
      AND ${isOf('$3', '$4')} AND ($5::text IS NULL OR m.category = $5) AND ($6::text IS NULL OR m.session_id = $6)
      AND ($7::timestamptz IS NULL OR ${happened} >= $7::timestamptz) AND ($8::timestamptz IS NULL OR ${happened} < $8::timestamptz)
      AND ($9::boolean OR m.superseded_by IS NULL)`,
    values: [
      tenantId,
      profile,
      endUserId ?? null,
      shared ?? false,
      category ?? null,
      sessionId ?? null,
      from === undefined ? null : timeOf(from, 'querystring/from'),
      to === undefined ? null : timeOf(to, 'querystring/to'),
      includeSuperseded ?? false,
    ],
  }
  return readList({ database, tenantId }, list, page, (row: MemoryRow) => toMemory(row))
}

/** One memory, current or superseded. 404 for an unknown id. */
export async function findMemory(database: Database, tenantId: string, profile: string, id: string): Promise<Memory> {
  if (!isId('mem', id)) throw unknownMemory()
  const find = {
    name: 'memory-find-one',
    text: `SELECT ${columns} FROM memories m WHERE m.tenant_id = $1 AND m.id = $2 AND m.profile = $3 AND ${alive}`,
    values: [tenantId, id, profile],
  }
  const [[row]] = await database.batch<[MemoryRow[]]>(tenantId, [find])
  if (!row) throw unknownMemory()
  return toMemory(row)
}

/** A memory with those that it superseded and those that superseded it, newest first. 404 for an unknown id. */
export async function historyOf(database: Database, tenantId: string, profile: string, id: string): Promise<Memory[]> {
  const own = await findMemory(database, tenantId, profile, id)
  const read = {
    name: 'memory-history',
    text: `WITH RECURSIVE line AS (
             SELECT $2::text AS id
             UNION
             SELECT m.id FROM line JOIN memories m ON m.tenant_id = $1 AND m.profile = $3
               AND (m.superseded_by = line.id OR m.id = (SELECT o.superseded_by FROM memories o WHERE o.tenant_id = $1 AND o.id = line.id))
           )
           SELECT ${columns} FROM memories m WHERE m.tenant_id = $1 AND m.id IN (SELECT id FROM line) AND ${alive}
           ORDER BY ${happened} DESC, m.number DESC LIMIT ${mostHistory}`,
    values: [tenantId, own.id, profile],
  }
  const [rows] = await database.as('reads').batch<[MemoryRow[]]>(tenantId, [read])
  return rows.map(toMemory)
}

/** Deletes a memory, and with `history` also the memories of the same person that it superseded. 404 for an unknown id. */
export async function removeMemory(
  database: Database,
  tenantId: string,
  profile: string,
  id: string,
  history = false,
): Promise<number> {
  const own = await findMemory(database, tenantId, profile, id)
  const line = history ? await historyOf(database, tenantId, profile, id) : [own]
  const ids = line.filter(({ endUserId }) => endUserId === own.endUserId).map((one) => one.id)
  const remove = {
    name: 'memory-remove',
    text: 'DELETE FROM memories WHERE tenant_id = $1 AND id = ANY ($2::text[]) RETURNING 1',
    values: [tenantId, ids],
  }
  const [, gone] = await database.batch<[object[], object[]]>(tenantId, [{ ...lock, values: [tenantId] }, remove])
  if (gone.length === 0) throw unknownMemory()
  return gone.length
}

/** True if a profile has memories, whether the profile still exists or not. */
export async function hasMemories(database: Database, tenantId: string, profile: string): Promise<boolean> {
  const look = {
    name: 'memory-has',
    text: 'SELECT 1 FROM memory_banks WHERE tenant_id = $1 AND profile = $2 AND records > 0',
    values: [tenantId, profile],
  }
  const [rows] = await database.batch<[object[]]>(tenantId, [look])
  return rows.length > 0
}

// `profile` has no table prefix, because the list reads it from a subquery with another name.
const idOfProfile = '(SELECT p.id FROM profiles p WHERE p.tenant_id = $1 AND p.name = profile)'
const has = (pattern: string): string =>
  `(content ILIKE ${pattern} OR summary ILIKE ${pattern} OR profile ILIKE ${pattern} OR ${idOfProfile} ILIKE ${pattern})`
const patternOf = (q: string): string => `%${q.replaceAll(/[\\%_]/g, '\\$&')}%`
const isCurrent = `${alive} AND m.superseded_by IS NULL AND ($2::text IS NULL OR m.category = $2)`

/** The memories of all profiles, newest first, with the number of profiles that have any. */
export async function listBank(
  database: Database,
  tenantId: string,
  { q, category, ...page }: BankQuery,
): Promise<Listing<Memory> & { readonly profilesWithMemory: number }> {
  const list: ListSql = {
    ...newest,
    where: `m.tenant_id = $1 AND ${isCurrent}`,
    values: [tenantId, category ?? null, ...(q ? [patternOf(q)] : [])],
    ...(q ? { among: { first: mostLooked, where: has('$3') } } : {}),
  }
  const [[count], found] = await Promise.all([
    database
      .as('reads')
      .batch<[{ count: number }[]]>(tenantId, [profilesOf(tenantId)])
      .then(([rows]) => rows),
    readList({ database, tenantId }, list, page as Page, (row: MemoryRow) => toMemory(row)),
  ])
  return { ...found, profilesWithMemory: count!.count }
}
/** Counts the profiles that have memories, whichever of these a filter shows. */
const profilesOf = (tenantId: string): Statement => ({
  name: 'memory-profiles',
  text: 'SELECT count(*)::int AS count FROM memory_banks WHERE tenant_id = $1 AND records > 0',
  values: [tenantId],
})

export interface Group {
  readonly profile: string
  readonly profileId?: string
  readonly total: number
  readonly memories: readonly Memory[]
}

interface Counted {
  readonly profile: string
  readonly profileId: string | null
  readonly total: number
}

/** The number of memories and the newest ones of each profile. Each profile is read only after the previous one was sent. */
export async function groupsOf(database: Database, tenantId: string, { q, category }: BankQuery) {
  const reads = database.as('figures')
  // Without a search a group is found by its key, and need not wait in the middle of an answer behind what goes through everything.
  const ofGroup = q ? reads : database.as('reads')
  const pattern = q ? patternOf(q) : null
  const where = `m.tenant_id = $1 AND ${isCurrent} AND ($3::text IS NULL OR ${has('$3::text')})`
  const [[profiles], counts] = await reads.batch<[{ count: number }[], Counted[]]>(tenantId, [
    profilesOf(tenantId),
    {
      name: 'memory-groups',
      text: `SELECT profile, (SELECT p.id FROM profiles p WHERE p.tenant_id = $1 AND p.name = profile) AS "profileId", total
             FROM (SELECT m.profile, count(*)::int AS total FROM memories m WHERE ${where} GROUP BY m.profile) counted ORDER BY profile`,
      values: [tenantId, category ?? null, pattern],
    },
  ])
  const groups = async function* (): AsyncGenerator<Group[]> {
    for (const { profile, profileId, total } of counts) {
      const [rows] = await ofGroup.batch<[MemoryRow[]]>(tenantId, [
        {
          name: 'memory-group',
          text: `SELECT ${columns} FROM memories m WHERE m.bank = (SELECT b.bank FROM memory_banks b WHERE b.tenant_id = $1 AND b.profile = $4)
                   AND ${where} ORDER BY m.created_at DESC, m.id DESC LIMIT ${mostGrouped}`,
          values: [tenantId, category ?? null, pattern, profile],
        },
      ])
      yield [{ profile, ...(profileId === null ? {} : { profileId }), total, memories: rows.map(toMemory) }]
    }
  }
  const total = Math.min(
    mostCounted,
    counts.reduce((sum, one) => sum + one.total, 0),
  )
  return { total, profilesWithMemory: profiles!.count, groups: groups() }
}

interface Counts {
  readonly memories: number
  readonly current: number
  readonly endUsers: number
  readonly oldest: string | null
  readonly newest: string | null
}
interface Named {
  readonly name: string
  readonly count: number
}

export async function statsOf(database: Database, tenantId: string): Promise<Omit<Stats, 'search'>> {
  const grouped = (name: string, text: string): Statement => ({
    name: `memory-stats-${name}`,
    text,
    values: [tenantId],
  })
  const [[counts], sources, categories, profiles, refused, [sizes]] = await database
    .as('figures')
    .batch<[Counts[], Named[], Named[], Named[], Named[], { bytes: number; profiles: number }[]]>(tenantId, [
      grouped(
        'counts',
        `SELECT count(*)::int AS memories, count(*) FILTER (WHERE superseded_by IS NULL)::int AS current, count(DISTINCT end_user_id)::int AS "endUsers",
           min(created_at) AS oldest, max(created_at) AS newest FROM memories m WHERE m.tenant_id = $1 AND ${alive}`,
      ),
      grouped(
        'sources',
        `SELECT source AS name, count(*)::int AS count FROM memories m WHERE m.tenant_id = $1 AND ${alive} GROUP BY 1`,
      ),
      grouped(
        'categories',
        `SELECT coalesce(category, '') AS name, count(*)::int AS count FROM memories m WHERE m.tenant_id = $1 AND ${alive} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 100`,
      ),
      grouped(
        'profiles',
        `SELECT profile AS name, records::int AS count FROM memory_banks WHERE tenant_id = $1 AND records > 0 ORDER BY 2 DESC, 1 LIMIT 100`,
      ),
      grouped('refused', 'SELECT reason AS name, count::int AS count FROM memory_refusals WHERE tenant_id = $1'),
      grouped(
        'sizes',
        `SELECT coalesce(sum(bytes), 0)::float8 AS bytes, count(*) FILTER (WHERE records > 0)::int AS profiles FROM memory_banks WHERE tenant_id = $1`,
      ),
    ])
  const byName = (rows: readonly Named[]): Record<string, number> =>
    Object.fromEntries(rows.map(({ name, count }) => [name, count]))
  const { oldest, newest: last, ...rest } = counts!
  return {
    ...rest,
    bytes: sizes!.bytes,
    profilesWithMemory: sizes!.profiles,
    bySource: byName(sources),
    byCategory: byName(categories),
    byProfile: byName(profiles),
    refused: byName(refused),
    ...(oldest === null ? {} : { oldest }),
    ...(last === null ? {} : { newest: last }),
  }
}

/** A tenant's usage in the units of its limits: the number of memories, and their bytes. */
export async function usedBy(database: Database, tenantId: string): Promise<{ memories: number; memoryBytes: number }> {
  const used = {
    name: 'memory-used',
    text: `SELECT coalesce(sum(records), 0)::float8 AS memories, coalesce(sum(bytes), 0)::float8 AS "memoryBytes" FROM memory_banks WHERE tenant_id = $1`,
    values: [tenantId],
  }
  const [[row]] = await database.batch<[{ memories: number; memoryBytes: number }[]]>(tenantId, [used])
  return row!
}
