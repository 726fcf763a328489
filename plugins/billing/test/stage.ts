import type { TestContext } from 'node:test'
import { definePlugin } from '#kernel'
import { type TenantRole, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { type TestCaller, testRole } from '#testing'

/** The conductor as an operator runs it, with billing, and `default` as the tenant of its operators. */
export async function stage(t: TestContext, variables: Readonly<Record<string, string>> = {}) {
  const parts: { database: Database }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database, tokens: Tokens },
    setup: async ({ deps }) => (parts.push(deps), {}),
  })
  const bootstrap = 'b'.repeat(40)
  const kernel = await testRole(t, 'conductor', [probe], {
    RUNNER_URLS: 'http://127.0.0.1:1',
    AGENT_ORC_BILLING: 'ledger',
    AGENT_ORC_ADMIN_TENANT: 'default',
    AGENT_ORC_BOOTSTRAP_KEY: bootstrap,
    AGENT_ORC_BOOTSTRAP: 'always',
    ...variables,
  })
  const conductor = kernel.listeners['conductor']!
  const callerWith =
    (key: string | undefined, more: Readonly<Record<string, string>> = {}): TestCaller =>
    (method, url, body) =>
      conductor.inject({
        method,
        url,
        headers: {
          ...(key === undefined ? {} : { authorization: `Bearer ${key}` }),
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          ...more,
        },
        ...(body === undefined ? {} : { payload: typeof body === 'string' ? body : JSON.stringify(body) }),
      })
  const operator = callerWith(bootstrap)
  const keyOf = async (tenantId: string): Promise<string> => {
    const made = await operator('POST', '/api/tenants', { id: tenantId, name: tenantId, ownerKey: true })
    return made.json<{ ownerKey: { token: string } }>().ownerKey.token
  }
  return {
    kernel,
    database: parts[0]!.database,
    operator,
    callerWith,
    keyOf,
    /** The owner of another tenant, which is made for it. */
    other: async (tenantId: string) => callerWith(await keyOf(tenantId)),
    withRole: async (owner: TestCaller, role: TenantRole) => {
      const made = await owner('POST', '/api/api-keys', { label: role, role })
      return callerWith(made.json<{ token: string }>().token)
    },
  }
}
