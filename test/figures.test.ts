import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Database, Work } from '#contracts/database'
import { listEntries } from '../plugins/audit/trail.ts'
import { Ledger } from '../plugins/billing/ledger.ts'
import { groupsOf, statsOf } from '../plugins/memory/bank/reads.ts'
import { createReader } from '../plugins/stats/reader.ts'

/** Which connections some work asks for first. */
async function connectionsOf(work: (database: Database) => Promise<unknown>): Promise<Work> {
  const asked = Promise.withResolvers<Work>()
  const database = {
    as(kind: Work) {
      asked.resolve(kind)
      return { batch: () => Promise.reject(new Error('seen')) }
    },
  }
  await assert.rejects(work(database as unknown as Database), /seen/)
  return asked.promise
}

test('what goes through all that a tenant has takes turns with its figures, and a list does not', async () => {
  const all: Readonly<Record<string, (database: Database) => Promise<unknown>>> = {
    'memories by profile': (database) => groupsOf(database, 'acme', { q: 'x' }),
    'figures of memories': (database) => statsOf(database, 'acme'),
    'a search of the audit log': (database) => listEntries(database, 'acme', { q: 'x' }),
    'a filtered audit log': (database) => listEntries(database, 'acme', { actor: 'tak_1' }),
    'a statement of credit': (database) => new Ledger(database).statement('acme', '2026-01'),
    stats: (database) => createReader(database).read('acme', [{ text: 'SELECT 1' }]),
  }
  for (const [what, work] of Object.entries(all)) assert.equal(await connectionsOf(work), 'figures', what)
  assert.equal(await connectionsOf((database) => listEntries(database, 'acme', { from: new Date(0) })), 'reads')
})
