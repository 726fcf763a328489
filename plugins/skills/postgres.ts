import type { Database, Statement, TenantTx } from '#contracts/database'
import { newId } from '#contracts/ids'
import { overLimit } from '#contracts/limits'
import type { Listing, Page } from '#contracts/paging'
import { unlessHeld } from '#contracts/retention'
import { type SkillContent, sha256 } from '#contracts/skills'
import { type ListSql, readList } from '#kit/lists'
import { nameTaken } from './errors.ts'
import type { SkillHeader } from './format.ts'
import { isScript, type Resource, skillMd, type SkillPackage } from './package.ts'
import {
  mostStaged,
  type Skill,
  type SkillStore,
  type Source,
  stagingMs,
  type StoredNeeds,
  type WholeSkill,
  type Write,
} from './store.ts'
import { expired, notHeld, tooManyUnused, unused } from './sweep.ts'

/** The stored description of a version, without its body and the content of its files. */
interface Manifest extends SkillHeader {
  /** `SKILL.md` first. The archive holds the files in this order. */
  readonly files: readonly Resource[]
}
interface Row {
  name: string
  source: Source
  version: number
  digest: string
  created_at: string
  updated_at: string
  manifest: Manifest
}

/** The size in bytes that is assumed for a version of an older release, which recorded none. Sixteen of the largest versions take some megabytes. */
const unknownSize = 64 * 1024

const ownColumns = 's.name, s.source, s.version, s.digest, s.created_at, s.updated_at'
const columns = `${ownColumns}, c.manifest`
const content = 'JOIN skill_contents c ON c.tenant_id = s.tenant_id AND c.digest = s.digest'
const withContent = `skills s ${content}`

const toSkill = (row: Row): Skill => {
  const { files, ...header } = row.manifest
  const resources = files.slice(1)
  return {
    ...header,
    source: row.source,
    version: row.version,
    digest: row.digest,
    resources,
    requiresSandbox: resources.some(isScript),
    totalBytes: files.reduce((sum, { bytes }) => sum + bytes, 0),
    createdAt: row.created_at,
    updatedAt: row.updated_at,
  }
}

const find = (tenantId: string, name: string): Statement => ({
  name: 'skills-find',
  text: `SELECT ${columns}, c.body FROM ${withContent} WHERE s.tenant_id = $1 AND s.name = $2`,
  values: [tenantId, name],
})

/** The database reads the manifests: those of a hundred skills may describe fifty thousand files. The first file, `SKILL.md`, is no script. */
const needs = `
  SELECT s.name, s.digest, c.manifest -> 'allowedTools' AS "allowedTools", f."totalBytes", f."requiresSandbox"
  FROM ${withContent} CROSS JOIN LATERAL (
    SELECT sum((file ->> 'bytes')::int)::float8 AS "totalBytes", bool_or(
      place > 1 AND ((file ->> 'executable')::boolean OR starts_with(file ->> 'path', 'scripts/'))) AS "requiresSandbox"
    FROM jsonb_array_elements(c.manifest -> 'files') WITH ORDINALITY AS files(file, place)) f
  WHERE s.tenant_id = $1 AND s.name = ANY ($2)`

/** Each write of a skill locks the tenant's row first. So concurrent writes cannot exceed the limit, and cannot deadlock. */
const lock = (tenantId: string): Statement => ({
  text: 'SELECT 1 FROM tenants WHERE id = $1 FOR NO KEY UPDATE',
  values: [tenantId],
})

/** Stores a version. An existing version gets a new date, so that no sweep deletes it before a skill refers to it. */
function keep(tenantId: string, skill: SkillPackage): Statement {
  const { name, description, license, compatibility, allowedTools, metadata, resources } = skill
  const [main] = skill.files
  const described: Resource = {
    path: skillMd,
    contentType: 'text/markdown',
    sha256: sha256(main!.bytes),
    executable: main!.executable,
    bytes: main!.bytes.length,
  }
  const manifest = JSON.stringify({
    name,
    description,
    license,
    compatibility,
    allowedTools,
    metadata,
    files: [described, ...resources],
  })
  return {
    text: `INSERT INTO skill_contents (tenant_id, digest, manifest, body, archive, manifest_bytes)
           VALUES ($1, $2, $3, $4, $5, $6)
           ON CONFLICT (tenant_id, digest) DO UPDATE SET created_at = now(), manifest_bytes = EXCLUDED.manifest_bytes`,
    values: [
      tenantId,
      skill.digest,
      manifest,
      skill.body,
      Buffer.concat(skill.files.map(({ bytes }) => bytes)),
      Buffer.byteLength(manifest),
    ],
  }
}

/** Only the tenant's own skills count for its limit, not those of the platform. */
const write = `
  INSERT INTO skills AS s (tenant_id, name, digest, source) SELECT $1, $2, $3, $4
  WHERE (SELECT count(*) FROM skills WHERE tenant_id = $1 AND source <> 'platform') < $5
    OR EXISTS (SELECT FROM skills WHERE tenant_id = $1 AND name = $2 AND source <> 'platform')
  ON CONFLICT (tenant_id, name) DO UPDATE SET digest = EXCLUDED.digest, source = EXCLUDED.source,
    version = s.version + (s.digest <> EXCLUDED.digest)::int, updated_at = clock_timestamp()
  WHERE $6::boolean RETURNING name`

export class PostgresSkillStore implements SkillStore {
  readonly #database: Database

  constructor(database: Database) {
    this.#database = database
  }

  list(tenantId: string, page: Page): Promise<Listing<Skill>> {
    const list: ListSql = {
      columns: `s.tenant_id, ${ownColumns}`,
      // The contents of the listed skills are looked up one by one, so the cost does not grow with the number of other skills.
      shown: columns,
      joined: content,
      from: 'skills s',
      named: 's',
      where: 's.tenant_id = $1',
      values: [tenantId],
      order: { 's.name': 'text' },
      // The description of a skill with 500 files takes some hundreds of kilobytes; most others take half a kilobyte.
      atOnce: 200,
      bytes: `coalesce(c.manifest_bytes, ${unknownSize})`,
    }
    return readList({ database: this.#database, tenantId }, list, page, toSkill)
  }
  async find(tenantId: string, name: string): Promise<WholeSkill | undefined> {
    const [[row]] = await this.#database.batch<[(Row & { body: string })[]]>(tenantId, [find(tenantId, name)])
    return row && { ...toSkill(row), body: row.body }
  }
  async file(tenantId: string, name: string, path: string) {
    return this.#database.tenant(tenantId, async (tx) => {
      const [row] = await tx.query<Row>(find(tenantId, name))
      const files = row?.manifest.files ?? []
      const at = files.findIndex((file) => file.path === path)
      if (at < 0) return undefined
      const from = files.slice(0, at).reduce((sum, { bytes }) => sum + bytes, 1)
      const [part] = await tx.query<{ data: Buffer }>({
        text: 'SELECT substring(archive FROM $3::int FOR $4::int) AS data FROM skill_contents WHERE tenant_id = $1 AND digest = $2',
        values: [tenantId, row!.digest, from, files[at]!.bytes],
      })
      return { ...files[at]!, data: part!.data }
    })
  }
  async needs(tenantId: string, names: readonly string[]): Promise<StoredNeeds[]> {
    const [rows] = await this.#database.batch<[StoredNeeds[]]>(tenantId, [
      { name: 'skills-needs', text: needs, values: [tenantId, names] },
    ])
    return rows
  }
  async content(tenantId: string, digest: string): Promise<SkillContent | undefined> {
    const [[row]] = await this.#database.batch<[{ manifest: Manifest; body: string; archive: Buffer }[]]>(tenantId, [
      {
        text: 'SELECT manifest, body, archive FROM skill_contents WHERE tenant_id = $1 AND digest = $2',
        values: [tenantId, digest],
      },
    ])
    if (!row) return undefined
    let at = 0
    const files = row.manifest.files.map(({ path, executable, bytes }) => {
      at += bytes
      return { path, executable, bytes: row.archive.subarray(at - bytes, at) }
    })
    const { name, description } = row.manifest
    return { name, description, digest, body: row.body, files }
  }
  async count(tenantId: string): Promise<number> {
    const text = `SELECT count(*)::int AS count FROM skills WHERE tenant_id = $1 AND source <> 'platform'`
    const [[row]] = await this.#database.batch<[{ count: number }[]]>(tenantId, [{ text, values: [tenantId] }])
    return row!.count
  }
  async put(tenantId: string, skill: SkillPackage, how: Write): Promise<WholeSkill> {
    return this.#database.tenant(tenantId, async (tx) => {
      await tx.query(lock(tenantId))
      await tx.query(keep(tenantId, skill))
      return point(tx, skill, how)
    })
  }
  async remove(tenantId: string, name: string): Promise<boolean> {
    const remove = {
      text: `WITH gone AS (DELETE FROM skills WHERE tenant_id = $1 AND name = $2 RETURNING source), tombstone AS (
               INSERT INTO skill_tombstones (tenant_id, name) SELECT $1, $2 FROM gone WHERE source = 'platform' ON CONFLICT DO NOTHING)
             SELECT source FROM gone`,
      values: [tenantId, name],
    }
    const statements = [lock(tenantId), remove, tooManyUnused(tenantId)]
    const [, gone] = await this.#database.batch<[object[], object[], object[]]>(tenantId, statements)
    return gone.length > 0
  }
  async stage(tenantId: string, skill: SkillPackage): Promise<string> {
    const id = newId('stg')
    const values = [tenantId, id, skill.digest, stagingMs]
    await this.#database.batch(tenantId, [
      lock(tenantId),
      keep(tenantId, skill),
      {
        text: `INSERT INTO skill_stagings (tenant_id, id, digest, expires_at)
               VALUES ($1, $2, $3, now() + $4 * interval '1 millisecond')`,
        values,
      },
      {
        text: `DELETE FROM skill_stagings WHERE tenant_id = $1 AND ${notHeld} AND id IN (
                 SELECT id FROM skill_stagings WHERE tenant_id = $1 ORDER BY expires_at DESC, id DESC OFFSET $2)`,
        values: [tenantId, mostStaged],
      },
      tooManyUnused(tenantId),
    ])
    return id
  }
  async commit(tenantId: string, stagingId: string, { most }: Pick<Write, 'most'>): Promise<WholeSkill | undefined> {
    return this.#database.tenant(tenantId, async (tx) => {
      await tx.query(lock(tenantId))
      const [staged] = await tx.query<{ digest: string; name: string }>({
        text: `WITH taken AS (
                 DELETE FROM skill_stagings WHERE tenant_id = $1 AND id = $2 AND expires_at > now() RETURNING digest)
               SELECT c.digest, c.manifest ->> 'name' AS name
               FROM taken JOIN skill_contents c ON c.tenant_id = $1 AND c.digest = taken.digest`,
        values: [tenantId, stagingId],
      })
      return staged && point(tx, staged, { source: 'imported', replace: true, most })
    })
  }
  async reconcile(tenantId: string, seeds: readonly SkillPackage[]): Promise<void> {
    const names = seeds.map(({ name }) => name)
    const [there, gone] = await this.#database.batch<[Pick<Row, 'name' | 'digest' | 'source'>[], { name: string }[]]>(
      tenantId,
      [
        {
          text: 'SELECT name, digest, source FROM skills WHERE tenant_id = $1 AND name = ANY ($2)',
          values: [tenantId, names],
        },
        { text: 'SELECT name FROM skill_tombstones WHERE tenant_id = $1', values: [tenantId] },
      ],
    )
    const settled = new Set(gone.map(({ name }) => name))
    for (const { name, digest, source } of there)
      if (source !== 'platform' || seeds.some((seed) => seed.name === name && seed.digest === digest)) settled.add(name)
    const wanted = seeds.filter(({ name }) => !settled.has(name))
    if (wanted.length === 0) return
    const bring = (seed: SkillPackage): Statement[] => [
      keep(tenantId, seed),
      {
        text: `INSERT INTO skills AS s (tenant_id, name, digest, source) SELECT $1, $2, $3, 'platform'
               WHERE NOT EXISTS (SELECT FROM skill_tombstones WHERE tenant_id = $1 AND name = $2)
               ON CONFLICT (tenant_id, name) DO UPDATE SET digest = EXCLUDED.digest, version = s.version + 1, updated_at = now()
               WHERE s.source = 'platform' AND s.digest <> EXCLUDED.digest`,
        values: [tenantId, seed.name, seed.digest],
      },
    ]
    await this.#database.batch(tenantId, [lock(tenantId), ...wanted.flatMap(bring)])
  }
  /** Deletes stagings and versions that nobody needs. Resolves to the numbers of deleted stagings and versions. */
  async sweep(tenantId: string): Promise<number> {
    const [, stagings, contents] = await this.#database
      .as('reads')
      .batch<[object[], object[], object[]]>(tenantId, [unlessHeld(tenantId), expired(tenantId), unused(tenantId)])
    return stagings.length + contents.length
  }
}

/** Points a skill's name to a stored version. */
async function point(
  tx: TenantTx,
  { name, digest }: Pick<SkillPackage, 'name' | 'digest'>,
  { source, most, replace }: Write,
): Promise<WholeSkill> {
  const { tenantId } = tx
  const written = await tx.query({ text: write, values: [tenantId, name, digest, source, most, replace] })
  const [row] = await tx.query<Row & { body: string }>(find(tenantId, name))
  if (written.length > 0) {
    await tx.query(tooManyUnused(tenantId))
    return { ...toSkill(row!), body: row!.body }
  }
  throw row && !replace ? nameTaken(name) : overLimit('skills', most)
}
