import { definePlugin, maybe } from '#kernel'
import { RunJournal } from '#contracts/run-journal'
import { RunStore } from '#contracts/run-store'
import { createMemoryRunStore } from './store.ts'

/** Sessions, runs and event logs of one process without a database: bounded, and lost when it ends unless a journal keeps them. */
export default definePlugin({
  name: 'run-store-memory',
  requires: { journal: maybe(RunJournal) },
  provides: { store: RunStore },
  async setup({ deps }) {
    const { store, restore } = createMemoryRunStore()
    return { store: deps.journal ? await deps.journal.keep(store, restore) : store }
  },
})
