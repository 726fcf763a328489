import { definePlugin, type Plugin } from '#kernel'
import { RunStore } from '#contracts/run-store'

/** The run store in memory, for a test kernel without runs. Loaded by address, as the database plugin is. */
export async function runStorePlugin(): Promise<Plugin> {
  const address = new URL('../../plugins/runs/memory/store.ts', import.meta.url).href
  const { MemoryRunStore } = (await import(address)) as { MemoryRunStore: new () => RunStore }
  return definePlugin({
    name: 'run-store',
    provides: { store: RunStore },
    setup: async () => ({ store: new MemoryRunStore() }),
  })
}
