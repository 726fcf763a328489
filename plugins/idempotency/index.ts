import { definePlugin } from '#kernel'
import { Database } from '#contracts/database'
import { Idempotency, idempotencyErrors } from '#contracts/idempotency'
import { createKeys } from './keys.ts'

/** Idempotency keys of clients, remembered for 24 h: a request that is repeated is carried out once. */
export default definePlugin({
  name: 'idempotency',
  errors: idempotencyErrors,
  requires: { database: Database },
  provides: { idempotency: Idempotency },
  async setup({ deps, log, onStart, onStop }) {
    const keys = createKeys(deps.database, log)
    if (!deps.database.absent) onStart(async () => keys.start())
    onStop(() => keys.stop())
    return { idempotency: keys }
  },
})
