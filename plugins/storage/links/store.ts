import { hash } from 'node:crypto'
import type { FastifyBaseLogger } from 'fastify'
import type { Database, Statement, TenantTx } from '#contracts/database'
import { type Content, linkErrors, type LinkedObjects, type ObjectLink, type Upload } from '#contracts/linked-objects'
import { objectErrors, type ObjectStore, type OpenObject } from '#contracts/object-store'
import type { AskStore, ErasedPart } from '#contracts/retention'
import { newId } from '#contracts/ids'
import { maxAttachmentBytes } from '#contracts/prompt'
import { contentOf } from '#kit/linked-files'

/** Objects that one batch of a sweep deletes. Their rows stay locked meanwhile. */
const sweptAtOnce = 20
/** Links to runs that never began that one batch deletes. */
const unbegunAtOnce = 500
/** The most uploads of a tenant that wait for a run. */
const mostWaiting = 1_000
const chunkBytes = 256 * 1024

interface LinkRow {
  readonly key: string
  readonly sha256: string
  readonly bytes: string
  readonly content_type: string
}
const linkOf = ({ key, sha256, bytes, content_type: contentType }: LinkRow): ObjectLink => ({
  key,
  sha256,
  bytes: Number(bytes),
  contentType,
})

// The upsert locks the row. A concurrent sweep has then either deleted both object and row before, or finds that a run uses the object.
const keepText = `
  WITH object AS (
    INSERT INTO linked_objects (tenant_id, key, sha256, bytes, content_type)
    SELECT $1, key, key, bytes, type FROM unnest($3::text[], $4::bigint[], $5::text[]) AS c (key, bytes, type) ORDER BY key
    ON CONFLICT (tenant_id, key) DO UPDATE SET bytes = excluded.bytes
    RETURNING key
  )
  INSERT INTO linked_object_runs (tenant_id, run_id, key) SELECT $1, $2, key FROM object ON CONFLICT DO NOTHING`
const useText = `
  WITH object AS (
    SELECT key, sha256, bytes, content_type FROM linked_objects
    WHERE tenant_id = $1 AND key = $3 AND sha256 <> '' AND expires_at IS NOT NULL AND (expires_at > now() OR uses > 0)
    FOR NO KEY UPDATE
  ), used AS (
    INSERT INTO linked_object_runs (tenant_id, run_id, key) SELECT $1, $2, key FROM object ON CONFLICT DO NOTHING
  )
  SELECT key, sha256, bytes, content_type FROM object`
const releaseText = `
  DELETE FROM linked_object_runs WHERE tenant_id = $1 AND run_id = $2
    AND NOT EXISTS (SELECT FROM runs WHERE tenant_id = $1 AND id = $2)
    AND NOT EXISTS (SELECT FROM workflow_runs WHERE tenant_id = $1 AND id = $2)`
// The objects cannot disappear, because the run in $2 uses them: the trigger that counts uses locks their rows.
const lendText = `
  INSERT INTO linked_object_runs (tenant_id, run_id, key)
  SELECT tenant_id, $3, key FROM linked_object_runs WHERE tenant_id = $1 AND run_id = $2 AND ($4::text[] IS NULL OR key = ANY ($4))
  ON CONFLICT (tenant_id, run_id, key) DO UPDATE SET added_at = excluded.added_at RETURNING 1`
const ofRunText = `
  SELECT o.key, o.sha256, o.bytes, o.content_type FROM linked_object_runs l
  JOIN linked_objects o ON o.tenant_id = l.tenant_id AND o.key = l.key
  WHERE l.tenant_id = $1 AND l.run_id = $2 AND o.sha256 = $3 LIMIT 1`
// A process that dies between linking objects and starting the run leaves links to a run that never begins. This statement deletes them; it runs
// hourly.
const unbegunText = `
  DELETE FROM linked_object_runs WHERE tenant_id = $1 AND ctid = ANY (ARRAY(
    SELECT l.ctid FROM linked_object_runs l WHERE l.tenant_id = $1
      AND l.added_at BETWEEN now() - interval '7 days' AND now() - interval '1 hour'
      AND NOT EXISTS (SELECT FROM runs r WHERE r.tenant_id = $1 AND r.id = l.run_id)
      AND NOT EXISTS (SELECT FROM workflow_runs w WHERE w.tenant_id = $1 AND w.id = l.run_id)
    LIMIT $2)) RETURNING 1`
// The row is written before the upload arrives, and it expires. If the process dies, the sweep deletes the partial object with the row.
const beginText = `
  INSERT INTO linked_objects (tenant_id, key, sha256, bytes, content_type, expires_at)
  SELECT $1, $2, '', 0, $3, now() + $4::double precision * interval '1 millisecond'
  WHERE $5 > (SELECT count(*) FROM (
    SELECT FROM linked_objects WHERE tenant_id = $1 AND uses = 0 AND expires_at > now() LIMIT $5) AS waiting)
  RETURNING expires_at`
const arrivedText = `UPDATE linked_objects SET sha256 = $3, bytes = $4 WHERE tenant_id = $1 AND key = $2`
const brokenText = `DELETE FROM linked_objects WHERE tenant_id = $1 AND key = $2`
const unusedText = `
  SELECT key FROM linked_objects
  WHERE tenant_id = $1 AND uses = 0 AND coalesce(expires_at, '-infinity') <= now()
  ORDER BY key LIMIT $2 FOR UPDATE SKIP LOCKED`

interface Options {
  readonly above: number
  readonly uploadMs: number
  readonly log: Pick<FastifyBaseLogger, 'warn'>
}

/**
 * Linked objects. Rows say which objects exist and which runs use them; the store has their bytes. A row is written before its object and deleted
 * after it.
 */
export class PostgresLinks implements LinkedObjects {
  readonly above: number
  readonly #db: Database
  readonly #objects: ObjectStore
  readonly #options: Options
  /** Removals under way, by tenant and key. One that a disk holds up outlives the transaction that had locked its row. */
  readonly #leaving = new Map<string, Promise<void>>()

  constructor(db: Database, objects: ObjectStore, options: Options) {
    this.above = options.above
    this.#db = db
    this.#objects = objects
    this.#options = options
  }

  async keep(tenantId: string, runId: string, contents: readonly Content[]): Promise<ObjectLink[]> {
    const links: ObjectLink[] = []
    const fresh = new Map<string, Content>()
    for (const content of contents) {
      const { bytes, contentType } = content
      const sha256 = await digestOf(bytes)
      fresh.set(sha256, content)
      links.push({ key: sha256, sha256, bytes: bytes.length, contentType })
    }
    const kept = [...fresh].toSorted(([a], [b]) => (a < b ? -1 : 1))
    const values = [
      tenantId,
      runId,
      kept.map(([key]) => key),
      kept.map(([, { bytes }]) => bytes.length),
      kept.map(([, { contentType }]) => contentType),
    ]
    await this.#ask(tenantId, { name: 'linked-keep', text: keepText, values })
    for (const [key, content] of kept) await this.#put(tenantId, key, content)
    return links
  }

  async use(tenantId: string, runId: string, uploadId: string): Promise<ObjectLink> {
    const [row] = await this.#ask<LinkRow>(tenantId, {
      name: 'linked-use',
      text: useText,
      values: [tenantId, runId, uploadId],
    })
    if (row) return linkOf(row)
    throw linkErrors.unknownUpload({
      message: `There is no upload '${uploadId.slice(0, 128)}', or it has expired: upload the file again.`,
    })
  }

  async read(tenantId: string, runId: string, link: ObjectLink): Promise<Buffer | undefined> {
    const found = await this.open(tenantId, runId, link.sha256)
    if (!found) return undefined
    const bytes = await contentOf(await found.read(), link)
    if (bytes) return bytes
    this.#options.log.warn({ tenantId, key: link.key }, 'a linked object does not match its digest')
    return undefined
  }

  async lend(
    tenantId: string,
    { from, to, keys }: { readonly from: string; readonly to: string; readonly keys?: readonly string[] },
    tx?: TenantTx,
  ): Promise<number> {
    const statement = { name: 'linked-lend', text: lendText, values: [tenantId, from, to, keys ?? null] }
    return (await (tx ? tx.query(statement) : this.#ask(tenantId, statement))).length
  }

  async release(tenantId: string, runId: string): Promise<void> {
    await this.#ask(tenantId, { name: 'linked-release', text: releaseText, values: [tenantId, runId] })
  }

  async upload(tenantId: string, body: AsyncIterable<Uint8Array>, mediaType: string): Promise<Upload> {
    const key = newId('att')
    const begin = [tenantId, key, mediaType, this.#options.uploadMs, mostWaiting]
    const [row] = await this.#ask<{ expires_at: string | Date }>(tenantId, {
      name: 'linked-begin',
      text: beginText,
      values: begin,
    })
    if (!row) throw linkErrors.tooManyUploads()
    try {
      const { info } = await this.#objects.put(tenantId, key, { body: bounded(body), contentType: mediaType })
      const { bytes, sha256 = '' } = info
      await this.#ask(tenantId, { name: 'linked-arrived', text: arrivedText, values: [tenantId, key, sha256, bytes] })
      return { id: key, sha256, bytes, mediaType, expiresAt: new Date(row.expires_at).toISOString() }
    } catch (error) {
      await this.#objects.remove(tenantId, key).catch(() => {})
      await this.#ask(tenantId, { name: 'linked-broken', text: brokenText, values: [tenantId, key] }).catch(() => {})
      throw error
    }
  }

  /** Opens the object of a run by its digest. Undefined if the run has no such object or belongs to another tenant. */
  async open(tenantId: string, runId: string, sha256: string): Promise<OpenObject | undefined> {
    const values = [tenantId, runId, sha256]
    const [row] = await this.#ask<LinkRow>(tenantId, { name: 'linked-of-run', text: ofRunText, values })
    if (!row) return undefined
    const found = await this.#objects.open(tenantId, row.key)
    return found && { ...found, info: { ...found.info, contentType: row.content_type } }
  }

  /** Deletes some of the objects that no run uses, or the links of runs that never began, which then use none any more. */
  async sweep(tx: TenantTx, ask: AskStore): Promise<ErasedPart> {
    const { tenantId } = tx
    // In a transaction of their own: whoever keeps these objects again does not wait for the store.
    const unbegun = await tx.query({ text: unbegunText, values: [tenantId, unbegunAtOnce] })
    if (unbegun.length > 0) return { deleted: 0, more: true }
    const unused = await tx.query<{ key: string }>({ text: unusedText, values: [tenantId, sweptAtOnce] })
    // What an earlier batch has given up, and the store still has, goes with a later one.
    const keys = unused.flatMap(({ key }) => (this.#leaving.has(idOf(tenantId, key)) ? [] : [key]))
    if (keys.length === 0) return { deleted: 0, more: false }
    // All have ended when this goes on, unless the store hangs: a removal behind the transaction might follow a legal hold.
    const ends = await ask((signal) => Promise.allSettled(keys.map((key) => this.#remove(tenantId, key, signal))))
    const gone = keys.filter((_, i) => ends[i]!.status === 'fulfilled')
    const failed = ends.find((end) => end.status === 'rejected')
    if (failed && gone.length === 0) throw failed.reason
    await tx.query({
      text: 'DELETE FROM linked_objects WHERE tenant_id = $1 AND key = ANY($2)',
      values: [tenantId, gone],
    })
    return { deleted: gone.length, more: failed !== undefined || unused.length === sweptAtOnce }
  }

  #remove(tenantId: string, key: string, signal: AbortSignal): Promise<boolean> {
    const id = idOf(tenantId, key)
    const removal = this.#objects.remove(tenantId, key, undefined, signal)
    const ended = (): void => void this.#leaving.delete(id)
    this.#leaving.set(id, removal.then(ended, ended))
    return removal
  }
  async #put(tenantId: string, key: string, { bytes, contentType }: Content): Promise<void> {
    // No sweep begins to remove it any more, because a run uses it. An object that is still being removed would be found here, and then go.
    await this.#leaving.get(idOf(tenantId, key))
    const there = await this.#objects.open(tenantId, key)
    await there?.close()
    if (there?.info.bytes === bytes.length) return
    await this.#objects.put(tenantId, key, {
      body: partsOf(bytes),
      bytes: bytes.length,
      contentType,
      checksums: { sha256: key },
    })
  }
  async #ask<Row extends object>(tenantId: string, statement: Statement): Promise<Row[]> {
    const [rows] = await this.#db.batch<[Row[]]>(tenantId, [statement])
    return rows
  }
}

const idOf = (tenantId: string, key: string): string => JSON.stringify([tenantId, key])

/** The digest of large contents is computed outside the main thread. */
async function digestOf(bytes: Buffer): Promise<string> {
  if (bytes.length <= chunkBytes) return hash('sha256', bytes)
  const digest = await crypto.subtle.digest('SHA-256', bytes as Uint8Array<ArrayBuffer>)
  return Buffer.from(digest).toString('hex')
}

async function* partsOf(bytes: Buffer): AsyncGenerator<Uint8Array> {
  for (let from = 0; from < bytes.length; from += chunkBytes) yield bytes.subarray(from, from + chunkBytes)
}

async function* bounded(body: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  let bytes = 0
  for await (const chunk of body) {
    bytes += chunk.length
    if (bytes > maxAttachmentBytes) throw linkErrors.uploadTooLarge()
    yield chunk
  }
  if (bytes === 0) throw linkErrors.emptyUpload()
}

const unavailable = async (): Promise<never> => {
  throw linkErrors.uploadsUnavailable()
}
const nowhere = async (): Promise<never> => {
  throw objectErrors.storageNotConfigured()
}
/** Links of a role without an object store or a database: every content stays where it is. */
export const noLinks: LinkedObjects = {
  above: Infinity,
  keep: nowhere,
  use: unavailable,
  upload: unavailable,
  read: nowhere,
  open: nowhere,
  lend: async () => 0,
  release: async () => {},
}
