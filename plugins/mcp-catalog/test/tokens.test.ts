import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Entry } from '../entry.ts'
import { Tokens } from '../tokens.ts'

test('while another process asks the authorization server, the database is asked less and less often', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  let statements = 0
  const due = { basis: '', token: null, valid: false, due: true, failure: null }
  const database = {
    // Another process has the lease.
    batch: async (_tenantId: string, [{ text }]: [{ text: string }]) => (
      statements++,
      [text.startsWith('INSERT') ? [] : [due]]
    ),
  }
  const stopping = new AbortController()
  const options = { database, stopping: stopping.signal }
  const tokens = new Tokens(options as unknown as ConstructorParameters<typeof Tokens>[0])
  const entry = { name: 'crm', url: 'https://crm.example/mcp' } as unknown as Entry
  const token = tokens.of('acme', entry, new AbortController().signal)
  for (let ms = 0; ms < 10_000; ms += 50) {
    await new Promise(setImmediate)
    t.mock.timers.tick(50)
  }
  // It looked at 0, 50, 150, 350, 750 and 1,550 ms, then every second.
  assert.equal(statements, 1 + 2 * 14)
  stopping.abort()
  await assert.rejects(token, /gave no token in time/)
})
