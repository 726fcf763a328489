import type { Profile } from '#contracts/profiles'
import type { ProfileDocument } from './document.ts'

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
export interface PlacedRow extends ProfileRow {
  pool: string | null
  pool_runners: string[] | null
  pool_runtimes: string[] | null
}
export const placedColumns = `${profileColumns}, p.pool, o.runners AS pool_runners, o.runtimes AS pool_runtimes`
export const withPool = 'profiles p LEFT JOIN pools o ON o.tenant_id = p.tenant_id AND o.name = p.pool'

export const toPlaced = (row: PlacedRow): Profile => ({
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
