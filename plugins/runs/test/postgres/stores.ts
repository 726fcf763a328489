import type { TestContext } from 'node:test'
import { pino } from 'pino'
import { definePlugin } from '#kernel'
import { databasePlugin, freshDatabase, testKernel } from '#testing'
import { Database } from '#contracts/database'
import { createPostgresRunStore, type PostgresRunStore, type PostgresRunStoreOptions } from '../../postgres/store.ts'

const log = pino({ level: 'silent' })

/** Several stores on one database, a fresh one unless given: each is a process of its own as far as claims go. */
export async function openStores(
  t: TestContext,
  address?: string,
): Promise<{
  readonly db: Database
  open(options?: Partial<PostgresRunStoreOptions>): Promise<PostgresRunStore>
}> {
  // Hooks run in the order they were registered: the stores close before their database goes.
  const opened: PostgresRunStore[] = []
  t.after(() => Promise.all(opened.map((store) => store.close())))
  const found: { db?: Database } = {}
  const grab = definePlugin({
    name: 'grab',
    requires: { db: Database },
    async setup(ctx) {
      found.db = ctx.deps.db
      return {}
    },
  })
  await testKernel(t, [await databasePlugin(address ?? (await freshDatabase(t))), grab])
  const db = found.db!
  return {
    db,
    async open(options = {}) {
      // Long intervals: a test beats and sweeps when it says so.
      const store = createPostgresRunStore(db, {
        heartbeatMs: 600_000,
        leaseMs: 600_000,
        hungMs: 600_000,
        sweepMs: 600_000,
        log,
        ...options,
      })
      await store.open()
      opened.push(store)
      return store
    },
  }
}
