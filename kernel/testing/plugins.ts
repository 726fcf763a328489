// Plugins of ours that tests of other plugins stand on.
import { definePlugin, type Entry, type Plugin } from '#kernel'
import { RunStore } from '#contracts/run-store'
import { load } from './database.ts'

/** The database plugin on a fresh database, for a test kernel. */
export async function databasePlugin(dsn: string): Promise<Entry> {
  const { default: plugin } = (await load('plugins/database/index.ts')) as { default: Plugin }
  return { name: 'database', plugin, config: { dsn, migrate: false } }
}

/** Idempotency keys on the test's database, for a test kernel. */
export async function idempotencyPlugin(): Promise<Entry> {
  const { default: plugin } = (await load('plugins/idempotency/index.ts')) as { default: Plugin }
  return { name: 'idempotency', plugin }
}

/** The run store in memory, for a test kernel without runs. */
export async function runStorePlugin(): Promise<Plugin> {
  const { MemoryRunStore } = (await load('plugins/runs/memory/store.ts')) as { MemoryRunStore: new () => RunStore }
  return definePlugin({
    name: 'run-store',
    provides: { store: RunStore },
    setup: async () => ({ store: new MemoryRunStore() }),
  })
}
