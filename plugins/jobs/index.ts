import { definePlugin } from '#kernel'
import { Database } from '#contracts/database'
import { Jobs } from '#contracts/jobs'
import { JobQueue } from './queue.ts'

/** Work by schedule that must be done whichever process dies, on pg-boss. */
export default definePlugin({
  name: 'jobs',
  requires: { database: Database },
  provides: { jobs: Jobs },
  async setup({ deps, log, stopping, onStart, onStop }) {
    const queue = new JobQueue(deps.database, log, stopping)
    if (!deps.database.absent) onStart(async () => queue.start())
    onStop(() => queue.stop())
    return { jobs: queue }
  },
})
