import { definePlugin } from '#kernel'
import { Database, databaseErrors } from '#contracts/database'

const refuse = async (): Promise<never> => {
  throw databaseErrors.databaseRequired()
}

const none: Database = {
  absent: true,
  as: () => none,
  tenant: refuse,
  system: refuse,
  batch: refuse,
  unit: refuse,
  systemBatch: refuse,
  listen: refuse,
  connections() {
    throw databaseErrors.databaseRequired()
  },
  heartbeat() {
    throw databaseErrors.databaseRequired()
  },
}

/** Declares that a role has no database. Its plugins keep their state in memory, or answer 503 `database_required`. */
export default definePlugin({
  name: 'no-database',
  errors: databaseErrors,
  provides: { database: Database },
  setup: async () => ({ database: none }),
})
