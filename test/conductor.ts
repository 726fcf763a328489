import type { TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { type TenantRole, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { type Signer, Signers } from '#contracts/signing'
import { testRole, type TestRoleOptions } from '#testing'
import { issueKey } from '../plugins/auth/keys.service.ts'
import type { Method } from './route-table.ts'

/** Admins of this tenant operate the installation in these tests. */
export const adminTenant = 'acme'

/**
 * The conductor as an operator runs it: every plugin of the development role, which test/access.test.ts holds to have all of
 * config/conductor.yaml, on a database of its own. No port is opened.
 */
export async function startConductor(
  t: TestContext,
  variables: Record<string, string> = {},
  options?: TestRoleOptions,
) {
  const parts: { database: Database; tokens: Tokens; signers: ReadonlyMap<string, Signer> }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database, tokens: Tokens, signers: Signers },
    setup: async ({ deps }) => (parts.push(deps), {}),
  })
  // Tests of every route try more wrong keys than anybody may.
  const given = { AGENT_ORC_ADMIN_TENANT: adminTenant, AGENT_ORC_WRONG_KEYS_RPM: '1000000', ...variables }
  const kernel = await testRole(t, 'dev', [probe], given, options)
  const { database, tokens, signers } = parts[0]!
  const app = kernel.listeners['conductor']!
  const internal = kernel.listeners['internal']!
  const gateway = kernel.listeners['gateway']!
  const runner = kernel.listeners['runner']!
  const workers = kernel.listeners['workers']!
  const sidecar = kernel.listeners['sidecar']!
  const vfs = kernel.listeners['vfs']!

  /** `body` is sent as JSON text. */
  const call = (key: string | undefined, method: Method, url: string, body?: unknown) =>
    app.inject({
      method,
      url,
      headers: {
        ...(key === undefined ? {} : { authorization: `Bearer ${key}` }),
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { payload: JSON.stringify(body) }),
    })
  const issue = (tenantId: string, role: TenantRole) =>
    issueKey(database, tokens, { tenantId, role, label: role, createdBy: 'test' })
  return { app, internal, gateway, runner, workers, sidecar, vfs, database, signers, call, issue }
}
