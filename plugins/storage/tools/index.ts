import { definePlugin, maybe } from '#kernel'
import { objectErrors, ObjectStore } from '#contracts/object-store'
import { PlatformTools } from '#contracts/tools'
import { Database, presentDatabase } from '#contracts/database'
import { WrittenObjects } from '#contracts/object-writes'
import { WriteLedger } from './tools.ts'
import { storageTools } from './tools.ts'

/** The tools by which agents use the object store of their tenant. A runner reaches it by itself; without a store there are none. */
export default definePlugin({
  name: 'storage-tools',
  errors: objectErrors,
  requires: { store: ObjectStore, database: maybe(Database) },
  provides: { tools: PlatformTools, written: WrittenObjects },
  async setup({ deps: { store, database } }) {
    const written = new WriteLedger()
    // With a database the store has counted each write already.
    const counted = presentDatabase(database) !== undefined
    const tools = store.backend === undefined ? [] : storageTools(store, { written, counted })
    return { tools: Object.fromEntries(tools.map((tool) => [tool.name, tool])), written }
  },
})
