import { notFound } from '#kernel'
import type { Database, Statement } from '#contracts/database'
import { isId, newId, tenantKey } from '#contracts/ids'
import { overLimit } from '#contracts/limits'
import type { Listing, Page } from '#contracts/paging'
import { type ListSql, readList } from '#kit/lists'
import type { Definition, DefinitionInfo, DefinitionPreview } from './schema.ts'

interface Row {
  id: string
  name: string
  version: number
  document: string
  created_at: string
  updated_at: string
}
const columns = 'd.id, d.name, d.version, v.document, d.created_at, d.updated_at'
const whole =
  'workflow_definitions d JOIN workflow_versions v ON v.tenant_id = d.tenant_id AND v.definition_id = d.id AND v.version = d.version'

const toInfo = (
  { id, version, created_at, updated_at }: Omit<Row, 'document'>,
  definition: Definition,
): DefinitionInfo => ({
  id,
  version,
  ...(definition as Definition & { nodes: unknown[] }),
  createdAt: created_at,
  updatedAt: updated_at,
})

/** A stored definition, or one that came with the request and has neither id nor version. */
export interface FoundDefinition {
  readonly id: string | undefined
  readonly version: number | undefined
  readonly definition: Definition
  /** Bytes of its document, if it was read from one. */
  readonly size?: number
}

/** The most bytes of definitions that a process keeps in memory: of all together, and of one. */
const mostKept = 16 * 1024 * 1024
const longestKept = 256 * 1024
/** The recently used definitions, the last used last. One may be outdated, so its user must check the version in the statement that uses it. */
export class RecentDefinitions {
  readonly #kept = new Map<string, { readonly found: FoundDefinition; readonly size: number }>()
  #size = 0

  of(tenantId: string, id: string | undefined): FoundDefinition | undefined {
    const key = tenantKey(tenantId, id ?? '')
    const kept = this.#kept.get(key)
    if (!kept) return undefined
    this.#kept.delete(key)
    this.#kept.set(key, kept)
    return kept.found
  }
  keep(tenantId: string, found: FoundDefinition): void {
    this.forget(tenantId, found)
    const { size = Infinity } = found
    if (size > longestKept) return
    this.#kept.set(tenantKey(tenantId, found.id ?? ''), { found, size })
    this.#size += size
    for (const [key, oldest] of this.#kept) {
      if (this.#size <= mostKept) return
      this.#kept.delete(key)
      this.#size -= oldest.size
    }
  }
  forget(tenantId: string, { id = '' }: FoundDefinition): void {
    const key = tenantKey(tenantId, id)
    this.#size -= this.#kept.get(key)?.size ?? 0
    this.#kept.delete(key)
  }
}

export const unknownDefinition = () => notFound({ message: 'No workflow definition has this id.' })

/** The statement that reads a definition, for a batch with other statements. */
export const definitionOf = (tenantId: string, id: string): Statement => ({
  name: 'workflow-definition',
  text: `SELECT ${columns} FROM ${whole} WHERE d.tenant_id = $1 AND d.id = $2`,
  values: [tenantId, id],
})
export type DefinitionRow = Row
/** The statement that reads how large a definition is, and the definition itself unless it is so large that it is not kept in memory. */
export const glanceAt = (tenantId: string, id: string): Statement => ({
  name: 'workflow-glance',
  text: `SELECT d.version, octet_length(v.document) AS size, CASE WHEN octet_length(v.document) <= ${longestKept} THEN v.document END AS document
         FROM ${whole} WHERE d.tenant_id = $1 AND d.id = $2`,
  values: [tenantId, id],
})
export interface Glance extends Pick<Row, 'version'> {
  readonly size: number
  readonly document: string | null
}

/** A definition as JSON. It has megabytes, so it is not parsed. Undefined: there is no such definition. */
export async function readDefinition(database: Database, tenantId: string, id: string): Promise<string | undefined> {
  if (!isId('wfdef', id)) return undefined
  const [[row]] = await database.batch<[Row[]]>(tenantId, [definitionOf(tenantId, id)])
  if (!row) return undefined
  const { version, document, created_at: createdAt, updated_at: updatedAt } = row
  return `${JSON.stringify({ id, version, createdAt, updatedAt }).slice(0, -1)},${document.slice(1)}`
}

interface Current {
  readonly id: string
  readonly version: number
  /** The definition as JSON. */
  readonly document: string
}

/** The current version of a definition. Undefined: there is no such definition. */
export async function findDefinition(
  database: Database,
  tenantId: string,
  id: string,
): Promise<(Current & { readonly definition: Definition; readonly info: DefinitionInfo }) | undefined> {
  if (!isId('wfdef', id)) return undefined
  const [[row]] = await database.batch<[Row[]]>(tenantId, [definitionOf(tenantId, id)])
  if (!row) return undefined
  const definition = JSON.parse(row.document) as Definition
  const { version, document } = row
  return { id, version, document, definition, info: toInfo(row, definition) }
}

/** The ids that do not exist. */
export async function unknownDefinitions(
  database: Database,
  tenantId: string,
  ids: readonly string[],
): Promise<string[]> {
  const [rows] = await database.batch<[{ id: string }[]]>(tenantId, [
    { text: 'SELECT id FROM workflow_definitions WHERE tenant_id = $1 AND id = ANY ($2)', values: [tenantId, ids] },
  ])
  const known = new Set(rows.map(({ id }) => id))
  return ids.filter((id) => !known.has(id))
}

/** Lists definitions in the order of their names. */
export function listDefinitions(database: Database, tenantId: string, page: Page): Promise<Listing<DefinitionPreview>> {
  const list: ListSql = {
    columns: `d.id, d.name, d.version, d.created_at, d.updated_at`,
    from: 'workflow_definitions d',
    where: 'd.tenant_id = $1',
    values: [tenantId],
    order: { 'd.name': 'text', 'd.id': 'text' },
    atOnce: 200,
  }
  return readList({ database, tenantId }, list, page, ({ id, name, version, created_at, updated_at }: Row) => ({
    id,
    name,
    version,
    createdAt: created_at,
    updatedAt: updated_at,
  }))
}

/** Adds a definition. 409 `limit_exceeded` when the tenant has as many as its limit allows. */
export async function insertDefinition(
  database: Database,
  tenantId: string,
  definition: Definition,
  { createdBy, most }: { readonly createdBy: string; readonly most: number },
): Promise<DefinitionInfo> {
  const id = newId('wfdef')
  return database.tenant(tenantId, async (tx) => {
    await tx.query({ text: 'SELECT pg_advisory_xact_lock(hashtextextended($1, 59))', values: [tenantId] })
    const [row] = await tx.query<Row>({
      text: `INSERT INTO workflow_definitions (tenant_id, id, name, version) SELECT $1, $2, $3, 1
             WHERE (SELECT count(*) FROM workflow_definitions WHERE tenant_id = $1) < $4 RETURNING created_at, updated_at`,
      values: [tenantId, id, definition.name, most],
    })
    if (!row) throw overLimit('workflowDefinitions', most)
    const document = JSON.stringify(definition)
    await tx.query({
      text: 'INSERT INTO workflow_versions (tenant_id, definition_id, version, document, created_by) VALUES ($1, $2, 1, $3, $4)',
      values: [tenantId, id, document, createdBy],
    })
    return toInfo({ ...row, id, name: definition.name, version: 1 }, definition)
  })
}

interface Change extends Pick<Current, 'document'> {
  readonly definition: Definition
  readonly createdBy: string
}

/**
 * Stores the version after `found` and deletes versions that are a hundred or more behind it. Runs keep their own copy. Undefined: there is a later
 * version, or the definition is gone.
 */
export async function replaceDefinition(
  database: Database,
  tenantId: string,
  { id, version }: Current,
  { definition, document, createdBy }: Change,
): Promise<DefinitionInfo | undefined> {
  return database.tenant(tenantId, async (tx) => {
    const [row] = await tx.query<Row>({
      text: `UPDATE workflow_definitions SET name = $3, version = version + 1, updated_at = now()
             WHERE tenant_id = $1 AND id = $2 AND version = $4 RETURNING version, created_at, updated_at`,
      values: [tenantId, id, definition.name, version],
    })
    if (!row) return undefined
    await tx.query({
      text: 'INSERT INTO workflow_versions (tenant_id, definition_id, version, document, created_by) VALUES ($1, $2, $3, $4, $5)',
      values: [tenantId, id, row.version, document, createdBy],
    })
    await tx.query({
      text: 'DELETE FROM workflow_versions WHERE tenant_id = $1 AND definition_id = $2 AND version <= $3',
      values: [tenantId, id, row.version - 100],
    })
    return toInfo({ ...row, id, name: definition.name }, definition)
  })
}

export async function deleteDefinition(database: Database, tenantId: string, id: string): Promise<void> {
  const [rows] = await database.batch<[object[]]>(tenantId, [
    { text: 'DELETE FROM workflow_definitions WHERE tenant_id = $1 AND id = $2 RETURNING 1', values: [tenantId, id] },
  ])
  if (rows.length === 0) throw unknownDefinition()
}

export async function countDefinitions(database: Database, tenantId: string): Promise<number> {
  const [[row]] = await database.batch<[{ count: number }[]]>(tenantId, [
    { text: 'SELECT count(*)::int AS count FROM workflow_definitions WHERE tenant_id = $1', values: [tenantId] },
  ])
  return row!.count
}
