import { definePlugin } from '#kernel'
import { RunStore } from '#contracts/run-store'
import { createMemoryRunStore } from './store.ts'

/** Sessions, runs and event logs of one process without a database: lost when it ends, bounded while it lives. */
export default definePlugin({
  name: 'run-store-memory',
  provides: { store: RunStore },
  setup: async () => ({ store: createMemoryRunStore() }),
})
