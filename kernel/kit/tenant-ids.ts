import type { Database } from '#contracts/database'

/** Tenants of one read. */
const atOnce = 500

const page = (which: string, name: string) => ({
  name: `tenant-ids-${name}`,
  text: `SELECT id FROM tenants WHERE id > $1 AND ${which} IS NULL ORDER BY id LIMIT ${atOnce}`,
})
const pages = {
  /** Those whose rows are there: deleted ones, too, until they are erased. */
  stored: page('erased_at', 'stored'),
  /** Those that are not deleted. */
  active: page('deleted_at', 'active'),
} as const

/**
 * All tenants one after the other, for what is done tenant by tenant: row security hides rows from a statement without one. However
 * many there are, a page of them is in memory.
 */
export async function* tenantIds(
  database: Pick<Database, 'systemBatch'>,
  which: keyof typeof pages,
): AsyncGenerator<string, void> {
  for (let after = '', full = true; full;) {
    const [rows] = await database.systemBatch<[{ id: string }[]]>([{ ...pages[which], values: [after] }])
    for (const { id } of rows) yield id
    full = rows.length === atOnce
    after = rows.at(-1)?.id ?? ''
  }
}
