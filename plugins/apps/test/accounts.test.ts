import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Accounts, type AccountsOptions } from '../connections/accounts.ts'

test('while another process renews an account, the database is asked less and less often', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  let statements = 0
  const database = {
    // Another process has the lease.
    batch: async (_tenantId: string, [{ text }]: [{ text: string }]) => (
      statements++,
      [text.startsWith('UPDATE') ? [] : [{ id: 'conn_1', valid: false, due: true }]]
    ),
  }
  const stopping = new AbortController()
  const accounts = new Accounts({ database, stopping: stopping.signal } as unknown as AccountsOptions)
  const settled = accounts.settle('acme', 'conn_1')
  for (let ms = 0; ms < 10_000; ms += 50) {
    await new Promise(setImmediate)
    t.mock.timers.tick(50)
  }
  // It looked at 0, 50, 150, 350, 750 and 1,550 ms, then every second.
  assert.equal(statements, 2 * 14)
  stopping.abort()
  await settled
})
