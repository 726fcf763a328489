import type { Entry, Plugin } from '#kernel'

/** The run store in memory, for a test kernel. Loaded by address, as the database plugin is. */
export async function runStorePlugin(): Promise<Entry> {
  const address = new URL('../../plugins/run-store-memory/index.ts', import.meta.url).href
  const { default: plugin } = (await import(address)) as { default: Plugin }
  return { name: 'run-store-memory', plugin }
}
