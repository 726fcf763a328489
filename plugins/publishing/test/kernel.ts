import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import type { TestContext } from 'node:test'
import { definePlugin, type Plugin } from '#kernel'
import { ApiGuard, type Guard, KeyIssuer, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { type Profile, Profiles } from '#contracts/profiles'
import { databasePlugin, fake, freshDatabase, testKernel } from '#testing'
import publishing from '../index.ts'

/** Each test says who calls. The guard's own tests show how a key becomes a caller. */
const openGuard: Guard = {
  protect() {},
  callerOf: ({ headers }) => ({ tenantId: String(headers['tenant']), role: 'admin', keyId: 'tak_test' }),
}

export function countingTokens(): Tokens {
  let minted = 0
  return {
    mint: () => `ao_test_${++minted}`,
    wellFormed: () => true,
    hash: (domain, token) => createHash('sha256').update(`${domain} ${token}`).digest(),
  }
}

/** The plugin on a real database, with profiles put into the table that its foreign key points to. */
export async function conductor(
  t: TestContext,
  config: Record<string, string> = {},
  tokens = countingTokens(),
  more: Plugin[] = [],
) {
  const found: Database[] = []
  /** When the key of the caller expires. The tests of `auth` show what becomes of a later wish. */
  const latest: { at?: Date } = {}
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database },
    provides: { profiles: Profiles },
    setup: async ({ deps }) => {
      found.push(deps.database)
      const find = async (tenantId: string, name: string): Promise<Profile | undefined> => {
        const select = { text: 'SELECT name FROM profiles WHERE name = $1', values: [name] }
        return (await deps.database.batch<[Profile[]]>(tenantId, [select]))[0][0]
      }
      return { profiles: { find, findIn: (tx, name) => find(tx.tenantId, name), findPlaced: async () => undefined } }
    },
  })
  const kernel = await testKernel(t, [
    await databasePlugin(await freshDatabase(t)),
    fake(ApiGuard, openGuard),
    fake(Tokens, tokens),
    fake(KeyIssuer, {
      expiryFor: async (_tx, _caller, asked) => (asked ? new Date(asked) : latest.at),
      issueOwner: async () => assert.fail('publishing issues no key of a tenant'),
    }),
    { name: 'publishing', plugin: publishing, config },
    probe,
    ...more,
  ])
  const database = found[0]!
  const call = (method: 'GET' | 'POST' | 'PATCH' | 'DELETE', url: string, body?: object, tenant = 'acme') =>
    kernel.listeners['conductor']!.inject({ method, url, headers: { tenant }, ...(body ? { body } : {}) })
  const profile = (name: string, tenant = 'acme') =>
    database.batch(tenant, [
      {
        text: `INSERT INTO profiles (tenant_id, name, id, document) VALUES ($1, $2, $2, '{}')`,
        values: [tenant, name],
      },
    ])
  return { call, profile, database, tokens, latest }
}
