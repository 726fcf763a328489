import type { Database } from 'agent-orc/contracts/database'
import type { Listing, Page } from 'agent-orc/contracts/paging'
import { type ListSql, readList } from 'agent-orc/kit/lists'
import type { Note } from './schema.ts'

interface Row {
  id: string
  text: string
  created_by: string
  created_at: string
}

const columns = 'id, text, created_by, created_at'

const toNote = (row: Row): Note => ({
  id: row.id,
  text: row.text,
  createdBy: row.created_by,
  createdAt: row.created_at,
})

/** Every statement runs as one tenant: row security shows its rows alone, and `tenant_id = $1` lets the index find them. */
export function createStore(database: Database) {
  return {
    /** Ids begin with the time, so their order is that of writing. */
    list(tenantId: string, page: Page): Promise<Listing<Note>> {
      const list: ListSql = {
        columns,
        from: 'notes',
        where: 'tenant_id = $1',
        values: [tenantId],
        order: { id: 'text' },
        // A note has 10,000 characters at most: a read is a megabyte or two, however long the list is.
        atOnce: 64,
      }
      return readList({ database, tenantId }, list, page, toNote)
    },
    async find(tenantId: string, id: string): Promise<Note | undefined> {
      const [row] = await database.unit<Row>(tenantId, {
        text: `SELECT ${columns} FROM notes WHERE tenant_id = $1 AND id = $2`,
        values: [tenantId, id],
      })
      return row && toNote(row)
    },
    async insert(tenantId: string, { id, text, createdBy }: Omit<Note, 'createdAt'>): Promise<Note> {
      const [row] = await database.unit<Row>(tenantId, {
        text: `INSERT INTO notes (tenant_id, id, text, created_by) VALUES ($1, $2, $3, $4) RETURNING ${columns}`,
        values: [tenantId, id, text, createdBy],
      })
      return toNote(row!)
    },
    /** False: there is no such note. */
    async remove(tenantId: string, id: string): Promise<boolean> {
      const rows = await database.unit<object>(tenantId, {
        text: 'DELETE FROM notes WHERE tenant_id = $1 AND id = $2 RETURNING id',
        values: [tenantId, id],
      })
      return rows.length > 0
    },
  }
}
export type NoteStore = ReturnType<typeof createStore>
