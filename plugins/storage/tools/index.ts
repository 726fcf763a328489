import { definePlugin } from '#kernel'
import { objectErrors, ObjectStore } from '#contracts/object-store'
import { PlatformTools } from '#contracts/tools'
import { storageTools } from './tools.ts'

/** The tools by which agents use the object store of their tenant. A runner reaches it by itself; without a store there are none. */
export default definePlugin({
  name: 'storage-tools',
  errors: objectErrors,
  requires: { store: ObjectStore },
  provides: { tools: PlatformTools },
  async setup({ deps: { store } }) {
    const tools = store.backend === undefined ? [] : storageTools(store)
    return { tools: Object.fromEntries(tools.map((tool) => [tool.name, tool])) }
  },
})
