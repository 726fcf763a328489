import { resolve } from 'node:path'
import { Type } from '@sinclair/typebox'
import { Settings } from '#kernel'
import { defineObjectBackend } from '#contracts/object-store'
import { DiskBackend } from './backend.ts'

/** Objects as files of a folder, for one machine. Each object is written to a temporary file, synced, and renamed. */
export default defineObjectBackend({
  name: 'disk',
  config: Settings({
    dir: Type.Optional(
      Type.String({ description: 'The folder, AGENT_ORC_STORAGE_DIR. Without it this backend is off.' }),
    ),
  }),
  async create({ config: { dir }, log, onStart }) {
    if (!dir) return undefined
    const backend = new DiskBackend(resolve(dir))
    onStart(async () => {
      await backend.tidy().catch((err: unknown) => log.warn({ err }, 'old uploads could not be cleared'))
    })
    log.debug({ dir: resolve(dir) }, 'objects are kept on disk')
    return backend
  },
})
