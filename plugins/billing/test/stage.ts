import type { TestContext } from 'node:test'
import type { TenantRole } from '#contracts/auth'
import { Database } from '#contracts/database'
import { operatedConductor, type TestCaller } from '#testing'

/** The conductor as an operator runs it, with billing, and `default` as the tenant of its operators. */
export async function stage(t: TestContext, variables: Readonly<Record<string, string>> = {}) {
  const { kernel, parts, bootstrap, askingWith, keyOf } = await operatedConductor(t, {
    needs: { database: Database },
    variables: { AGENT_ORC_BILLING: 'ledger', ...variables },
  })
  const callerWith =
    (key: string | undefined, more: Readonly<Record<string, string>> = {}): TestCaller =>
    (method, url, body) =>
      askingWith(key)(method, url, body, more)
  return {
    kernel,
    database: parts.database,
    operator: callerWith(bootstrap),
    callerWith,
    keyOf,
    other: async (tenantId: string) => callerWith(await keyOf(tenantId)),
    withRole: async (owner: TestCaller, role: TenantRole) => {
      const made = await owner('POST', '/api/api-keys', { label: role, role })
      return callerWith(made.json<{ token: string }>().token)
    },
  }
}
