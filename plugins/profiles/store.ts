import { type Database, sqlState, type Statement, type TenantTx, violatedConstraint } from '#contracts/database'
import type { Listing, Page } from '#contracts/paging'
import { TenantCache } from '#kit'
import { type ListSql, readList } from '#kit/lists'
import { overLimit } from '#contracts/limits'
import type { PlacedProfile, Profile, Profiles } from '#contracts/profiles'
import { type Skills, skillsOfTools } from '#contracts/skills'
import type { ProfileDocument } from './document.ts'
import { pinSkills } from './skills.ts'
import {
  idChanged,
  idTaken,
  nameTaken,
  preconditionFailed,
  unknownProfile,
  unstorableText,
  profileErrors,
} from './errors.ts'

/** The profiles of all tenants: in PostgreSQL, or in memory where there is no database. */
export interface ProfileStore {
  find(tenantId: string, name: string): Promise<Profile | undefined>
  /** A profile with its pool, and the revision of the tenant's profiles and pools at that moment. */
  findPlaced(tenantId: string, name: string): Promise<PlacedProfile | undefined>
  /** Sorted by name. `q`: a part of the name, case-insensitive. */
  list(tenantId: string, q: string | undefined, page: Page): Promise<Listing<Profile>>
  count(tenantId: string): Promise<number>
  /** `conflict` 409 when its name or id is taken, `limit_exceeded` 409 when the tenant has reached its limit. */
  insert(tenantId: string, name: string, id: string, document: ProfileDocument, writer: Creator): Promise<Profile>
  /** `not_found` 404, `conflict` 409 for another id, `precondition_failed` 412 for another version. */
  replace(
    tenantId: string,
    name: string,
    expected: Expected,
    document: ProfileDocument,
    writer: Writer,
  ): Promise<Profile>
  /** `not_found` 404, `precondition_failed` 412. */
  remove(tenantId: string, name: string, expected: Expected): Promise<void>
}

/** Who writes a version, and which version it repeats. The database keeps both with the version. */
export interface Writer {
  readonly keyId: string
  readonly restoredFrom?: number
}

export interface Creator extends Writer {
  /** How many profiles the tenant may have. */
  readonly most: number
}

/** The conditions that the stored profile must meet for a write to change it. */
export interface Expected {
  readonly id?: string | undefined
  /** The versions that the stored profile may have. Undefined: any version. */
  readonly versions?: readonly number[] | undefined
}

export interface ProfileRow {
  name: string
  id: string
  document: ProfileDocument
  version: number
  created_at: string
  updated_at: string
}
export const profileColumns = 'p.name, p.id, p.document, p.version, p.created_at, p.updated_at'

export const toProfile = (row: ProfileRow): Profile => ({
  name: row.name,
  id: row.id,
  ...row.document,
  version: row.version,
  createdAt: row.created_at,
  updatedAt: row.updated_at,
})

/** A profile with the pool that it names, if it names one. */
interface PlacedRow extends ProfileRow {
  pool: string | null
  pool_runners: string[] | null
  pool_runtimes: string[] | null
}
const placedColumns = `${profileColumns}, p.pool, o.runners AS pool_runners, o.runtimes AS pool_runtimes`
const withPool = 'profiles p LEFT JOIN pools o ON o.tenant_id = p.tenant_id AND o.name = p.pool'

const toPlaced = (row: PlacedRow): Profile => ({
  ...toProfile(row),
  ...(row.pool === null
    ? {}
    : {
        placement: {
          ...(row.pool_runners === null ? {} : { runners: row.pool_runners }),
          ...(row.pool_runtimes === null ? {} : { runtimes: row.pool_runtimes }),
        },
      }),
})

const findStatement = (tenantId: string, name: string): Statement => ({
  name: 'profiles_find',
  text: `SELECT ${profileColumns} FROM profiles p WHERE p.tenant_id = $1 AND p.name = $2`,
  values: [tenantId, name],
})

async function findProfileIn(tx: TenantTx, name: string): Promise<Profile | undefined> {
  const [row] = await tx.query<ProfileRow>(findStatement(tx.tenantId, name))
  return row && toProfile(row)
}

const writtenBy = ({ keyId, restoredFrom }: Writer): Statement => ({
  text: `SELECT set_config('app.written_by', $1, true), set_config('app.restored_from', $2, true)`,
  values: [keyId, restoredFrom === undefined ? '' : String(restoredFrom)],
})

/** The store in PostgreSQL. Each write adds a version, and a change for the runners. */
export class PostgresProfileStore implements ProfileStore {
  readonly #database: Database

  constructor(database: Database) {
    this.#database = database
  }

  async find(tenantId: string, name: string): Promise<Profile | undefined> {
    const [row] = await this.#database.unit<ProfileRow>(tenantId, findStatement(tenantId, name))
    return row && toProfile(row)
  }
  async findPlaced(tenantId: string, name: string): Promise<PlacedProfile | undefined> {
    const [row] = await this.#database.unit<PlacedRow & { revision: number }>(tenantId, {
      name: 'profiles_find_placed',
      text: `SELECT ${placedColumns}, (SELECT broadcast_revision FROM tenants WHERE id = $1) AS revision
             FROM ${withPool} WHERE p.tenant_id = $1 AND p.name = $2`,
      values: [tenantId, name],
    })
    return row && { profile: toPlaced(row), revision: row.revision }
  }
  list(tenantId: string, q: string | undefined, page: Page): Promise<Listing<Profile>> {
    const list: ListSql = {
      columns: placedColumns,
      from: withPool,
      counted: 'profiles p',
      where: 'p.tenant_id = $1 AND ($2::text IS NULL OR position(lower($2) IN lower(p.name)) > 0)',
      values: [tenantId, q ?? null],
      order: { 'p.name': 'text' },
      // Profiles per portion of a list. A profile may be as large as a request, a megabyte.
      atOnce: 8,
    }
    return readList({ database: this.#database, tenantId }, list, page, toPlaced)
  }
  async count(tenantId: string): Promise<number> {
    const count = { text: 'SELECT count(*)::int AS count FROM profiles WHERE tenant_id = $1', values: [tenantId] }
    const [[row]] = await this.#database.batch<[{ count: number }[]]>(tenantId, [count])
    return row!.count
  }
  async insert(
    tenantId: string,
    name: string,
    id: string,
    document: ProfileDocument,
    { most, ...writer }: Creator,
  ): Promise<Profile> {
    // Adding a profile locks the row of the tenant, so that each profile is counted before the next one is added.
    const lock = { text: 'SELECT 1 FROM tenants WHERE id = $1 FOR NO KEY UPDATE', values: [tenantId] }
    const insert = {
      text: `INSERT INTO profiles AS p (tenant_id, name, id, document) SELECT $1, $2, $3, $4
             WHERE (SELECT count(*) FROM profiles WHERE tenant_id = $1) < $5
               OR EXISTS (SELECT 1 FROM profiles WHERE tenant_id = $1 AND (name = $2 OR id = $3))`,
      values: [tenantId, name, id, JSON.stringify(document), most],
    }
    const statements = [writtenBy(writer), lock, insert, findWritten(tenantId, name)]
    const [, , , rows] = await this.#database
      .batch<[object[], object[], object[], PlacedRow[]]>(tenantId, statements)
      .catch((error: unknown) => {
        if (sqlState(error) !== '23505') throw readable(error, document)
        throw violatedConstraint(error) === 'profiles_id' ? idTaken(id) : nameTaken(name)
      })
    if (!rows[0]) throw overLimit('profiles', most)
    return toPlaced(rows[0])
  }
  async replace(
    tenantId: string,
    name: string,
    expected: Expected,
    document: ProfileDocument,
    writer: Writer,
  ): Promise<Profile> {
    const { id, versions } = expected
    const update = {
      text: `UPDATE profiles SET document = $3, updated_at = now()
             WHERE tenant_id = $1 AND name = $2 AND id = COALESCE($4, id) AND ($5::int[] IS NULL OR version = ANY ($5::int[]))
             RETURNING version`,
      values: [tenantId, name, JSON.stringify(document), id ?? null, versions ?? null],
    }
    const [, written, rows] = await this.#database
      .batch<[object[], object[], PlacedRow[]]>(tenantId, [writtenBy(writer), update, findWritten(tenantId, name)])
      .catch((error: unknown) => {
        throw readable(error, document)
      })
    if (!rows[0]) throw unknownProfile()
    if (written.length === 0) throw refused(rows[0], expected)
    return toPlaced(rows[0])
  }
  async remove(tenantId: string, name: string, expected: Expected): Promise<void> {
    const { versions } = expected
    const [deleted, [left]] = await this.#database.batch<[object[], ProfileRow[]]>(tenantId, [
      {
        text: `DELETE FROM profiles WHERE tenant_id = $1 AND name = $2 AND ($3::int[] IS NULL OR version = ANY ($3::int[]))
               RETURNING name`,
        values: [tenantId, name, versions ?? null],
      },
      findStatement(tenantId, name),
    ])
    if (deleted.length > 0) return
    throw left ? refused(left, expected) : unknownProfile()
  }
}

/** Reads back what the same transaction wrote, with the pool. If the transaction wrote nothing, reads the row that prevented the write. */
const findWritten = (tenantId: string, name: string): Statement => ({
  text: `SELECT ${placedColumns} FROM ${withPool} WHERE p.tenant_id = $1 AND p.name = $2`,
  values: [tenantId, name],
})

const refused = (row: ProfileRow, { id }: Expected): Error =>
  id !== undefined && row.id !== id ? idChanged() : preconditionFailed(row.version)

/** Translates two errors of PostgreSQL: jsonb cannot hold some characters of JSON, and a pool may have been deleted since the check. */
const readable = (error: unknown, { pool = '' }: ProfileDocument): unknown => {
  if (violatedConstraint(error) === 'profiles_pool') return profileErrors.unknownPool({ name: pool })
  return ['22P05', '22P02', '22021'].includes(sqlState(error) ?? '') ? unstorableText(error) : error
}

/** Bytes of memory for the profiles that are remembered. One takes about ten kilobytes, in the worst case some hundreds. */
const mostRememberedBytes = 64 * 1024 * 1024

/**
 * Profiles for the plugins that run or publish them. Recently used profiles are cached. The statement that starts a run compares the profile's
 * revision, so a cached profile is as good as one that was read, and saves a round trip.
 */
export function createProfileLookup(store: ProfileStore, skills: Skills | undefined): Profiles {
  const known = new TenantCache<PlacedProfile>(mostRememberedBytes)
  let generation = 0
  skills?.onOthers(() => {
    generation++
    known.deleteWhere(({ profile }) => profile.skills.includes(skillsOfTools))
  })
  return {
    find: (tenantId, name) => store.find(tenantId, name),
    findIn: findProfileIn,
    async findPlaced(tenantId, name, fresh = false) {
      const remembered = fresh ? undefined : known.get(tenantId, name)
      if (remembered) return remembered
      const began = generation
      // A changed skill raises the revision of the profiles that name it, which makes the cached profile outdated.
      const found = await pinSkills(skills, tenantId, await store.findPlaced(tenantId, name))
      known.delete(tenantId, name)
      if (found && began === generation) known.put(tenantId, name, found)
      return found
    },
  }
}

/** Adds the current skill versions to profiles that are held in memory, whose lookup costs nothing. */
export const withPins = (profiles: Profiles, skills: Skills | undefined): Profiles => ({
  find: (tenantId, name) => profiles.find(tenantId, name),
  findIn: (tx, name) => profiles.findIn(tx, name),
  findPlaced: async (tenantId, name) => pinSkills(skills, tenantId, await profiles.findPlaced(tenantId, name)),
})
