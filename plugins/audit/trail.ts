import type { AuditTrail } from '#contracts/audit'
import type { Database } from '#contracts/database'
import { newId } from '#contracts/ids'
import { notRecorded } from './errors.ts'
import { insertEntry, insertOutcome } from './store.ts'

/** Characters of a path or a target that are kept: what a client sends must not be able to fill the log. */
const maxText = 1_024
/** PostgreSQL stores no NUL, and an escaped one in a path becomes one in a parameter. */
const storable = (text: string): string => text.slice(0, maxText).replaceAll('\0', '\uFFFD')

export function createAuditTrail(database: Database, log: { warn(fields: object, message: string): void }): AuditTrail {
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
      return entry
    },
    async end(entry, { status, target }) {
      const outcome = { status, ...(target === undefined ? {} : { target: storable(target) }) }
      await insertOutcome(database, entry, outcome).catch((err: unknown) =>
        log.warn({ err, entry: entry.id, status }, 'how an audited write ended is not on record'),
      )
    },
  }
}
