import { resolve } from 'node:path'
import { definePlugin } from '#kernel'
import { ObjectFolders, objectErrors } from '#contracts/object-store'
import { DiskBackend } from '../backend.ts'

/** Objects in folders that other plugins name, stored like those of `storage-disk`. */
export default definePlugin({
  name: 'storage-folders',
  errors: objectErrors,
  provides: { folders: ObjectFolders },
  setup: async () => ({
    folders: {
      async open(dir) {
        const backend = new DiskBackend(resolve(dir))
        await backend.tidy(0)
        return backend
      },
    },
  }),
})
