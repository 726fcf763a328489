import { type Database, sqlState, type Statement, type TenantTx, violatedConstraint } from '#contracts/database'
import { type Page, pageValues } from '#contracts/paging'
import type { Profile } from '#contracts/profiles'
import type { ProfileDocument } from './document.ts'
import { idChanged, idTaken, nameTaken, unknownProfile, unstorableText } from './errors.ts'

interface Row {
  name: string
  id: string
  document: ProfileDocument
  created_at: string
  updated_at: string
}

const columns = 'name, id, document, created_at, updated_at'

const toProfile = ({ name, id, document, created_at, updated_at }: Row): Profile => ({
  name,
  id,
  ...document,
  createdAt: created_at,
  updatedAt: updated_at,
})

const find = (tenantId: string, name: string): Statement => ({
  name: 'profiles_find',
  text: `SELECT ${columns} FROM profiles WHERE tenant_id = $1 AND name = $2`,
  values: [tenantId, name],
})

export async function findProfile(database: Database, tenantId: string, name: string): Promise<Profile | undefined> {
  const [row] = await database.unit<Row>(tenantId, find(tenantId, name))
  return row && toProfile(row)
}

export async function findProfileIn(tx: TenantTx, name: string): Promise<Profile | undefined> {
  const [row] = await tx.query<Row>(find(tx.tenantId, name))
  return row && toProfile(row)
}

export async function listProfiles(
  database: Database,
  tenantId: string,
  page: Page,
): Promise<{ profiles: Profile[]; total: number }> {
  const [rows, [count]] = await database.batch<[Row[], { total: number }[]]>(tenantId, [
    {
      text: `SELECT ${columns} FROM profiles WHERE tenant_id = $1 ORDER BY name LIMIT $2 OFFSET $3`,
      values: [tenantId, ...pageValues(page)],
    },
    { text: 'SELECT count(*)::int AS total FROM profiles WHERE tenant_id = $1', values: [tenantId] },
  ])
  return { profiles: rows.map(toProfile), total: count!.total }
}

export async function insertProfile(
  database: Database,
  tenantId: string,
  name: string,
  id: string,
  document: ProfileDocument,
): Promise<Profile> {
  const insert = {
    text: `INSERT INTO profiles (tenant_id, name, id, document) VALUES ($1, $2, $3, $4) RETURNING ${columns}`,
    values: [tenantId, name, id, JSON.stringify(document)],
  }
  const [rows] = await database.batch<[Row[]]>(tenantId, [insert]).catch((error: unknown) => {
    if (sqlState(error) !== '23505') throw readable(error)
    throw violatedConstraint(error) === 'profiles_id' ? idTaken(id) : nameTaken(name)
  })
  return toProfile(rows[0]!)
}

/** `id` undefined keeps the stored one. */
export async function replaceProfile(
  database: Database,
  tenantId: string,
  name: string,
  id: string | undefined,
  document: ProfileDocument,
): Promise<Profile> {
  const [rows, known] = await database
    .batch<[Row[], object[]]>(tenantId, [
      {
        text: `UPDATE profiles SET document = $3, updated_at = now()
               WHERE tenant_id = $1 AND name = $2 AND id = COALESCE($4, id) RETURNING ${columns}`,
        values: [tenantId, name, JSON.stringify(document), id ?? null],
      },
      { text: 'SELECT FROM profiles WHERE tenant_id = $1 AND name = $2', values: [tenantId, name] },
    ])
    .catch((error: unknown) => {
      throw readable(error)
    })
  if (known.length === 0) throw unknownProfile()
  if (!rows[0]) throw idChanged()
  return toProfile(rows[0])
}

export async function deleteProfile(database: Database, tenantId: string, name: string): Promise<void> {
  const [rows] = await database.batch<[object[]]>(tenantId, [
    { text: 'DELETE FROM profiles WHERE tenant_id = $1 AND name = $2 RETURNING name', values: [tenantId, name] },
  ])
  if (rows.length === 0) throw unknownProfile()
}

/** JSON may carry characters that jsonb cannot; PostgreSQL says so with these states. */
const readable = (error: unknown): unknown =>
  ['22P05', '22P02', '22021'].includes(sqlState(error) ?? '') ? unstorableText({ cause: error }) : error
