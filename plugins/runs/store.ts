import type { FastifyBaseLogger } from 'fastify'
import { type Database, presentDatabase } from '#contracts/database'
import type { Prices } from '#contracts/prices'
import type { RunStore } from '#contracts/run-store'

export interface StoreOptions {
  readonly config: {
    /** The folder in which runs are written to files as well. */
    readonly dir?: string
    /** How often the lease of this process is renewed, in milliseconds. */
    readonly heartbeat: number
    readonly lease: number
    readonly sweep: number
  }
  readonly deps: { readonly database: Database | undefined; readonly prices: Prices | undefined }
  readonly log: FastifyBaseLogger
  onStart(fn: () => Promise<void>): void
  onStop(fn: () => Promise<void>): void
}

/** The store that the role has: PostgreSQL, or the memory of this process where there is no database. The other is not loaded. */
export async function openStore({ config, deps, log, onStart, onStop }: StoreOptions): Promise<RunStore> {
  const { dir, heartbeat, lease, sweep } = config
  const database = presentDatabase(deps.database)
  const folder = dir === undefined ? undefined : await (await import('./journal/folder.ts')).JournalFolder.open(dir)
  if (!database) {
    if (!folder) return new (await import('./memory/store.ts')).MemoryRunStore()
    const kept = await (await import('./memory/kept.ts')).KeptRunStore.open(folder)
    onStop(() => kept.close())
    return kept
  }
  const { createPostgresRunStore } = await import('./postgres/store.ts')
  const timing = { heartbeatMs: heartbeat, leaseMs: lease, sweepMs: sweep }
  const store = createPostgresRunStore(database, { ...timing, prices: deps.prices, log })
  onStart(() => store.open())
  onStop(() => store.close())
  if (!folder) return store
  const mirror = new (await import('./journal/mirror.ts')).JournalMirror(store, folder, log)
  onStart(async () => mirror.start())
  onStop(() => mirror.stop())
  return mirror.store
}
