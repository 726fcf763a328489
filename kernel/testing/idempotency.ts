import type { Entry, Plugin } from '#kernel'

/** Idempotency keys on the test's database, for a test kernel. Loaded by address, as the database plugin is. */
export async function idempotencyPlugin(): Promise<Entry> {
  const address = new URL('../../plugins/idempotency/index.ts', import.meta.url).href
  const { default: plugin } = (await import(address)) as { default: Plugin }
  return { name: 'idempotency', plugin }
}
