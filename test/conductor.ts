import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { parseEnv } from 'node:util'
import { boot, definePlugin } from '#kernel'
import { type TenantRole, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { type Signer, Signers } from '#contracts/signing'
import { freshDatabase } from '#testing'
import { loadRole, root } from '../kernel/config.ts'
import { issueKey } from '../plugins/auth/keys.service.ts'
import type { Method } from './route-table.ts'

/** Admins of this tenant operate the installation in these tests. */
export const adminTenant = 'acme'

/**
 * The conductor as an operator runs it: every plugin of the development role, which test/access.test.ts holds to have all of
 * config/conductor.yaml, on a database of its own. No port is opened.
 */
export async function startConductor(t: TestContext, variables: Record<string, string> = {}) {
  const parts: { database: Database; tokens: Tokens; signers: ReadonlyMap<string, Signer> }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database, tokens: Tokens, signers: Signers },
    setup: async ({ deps }) => (parts.push(deps), {}),
  })
  const sample = parseEnv(await readFile(join(root, 'config/check.env'), 'utf8'))
  const env = {
    ...sample,
    POSTGRES_DSN: await freshDatabase(t),
    // The sample servers do not exist: PostgreSQL and the sidecar of this process stand in.
    REDIS_URL: '',
    SIDECAR_URL: '',
    AGENT_ORC_DATA: join(root, 'no-such-folder'),
    AGENT_ORC_ADMIN_TENANT: adminTenant,
    LOG_LEVEL: 'silent',
    ...variables,
  }
  const role = await loadRole(join(root, 'config/dev.yaml'), { env })
  const kernel = await boot(
    { ...role, plugins: [...role.plugins, { name: 'probe', plugin: probe }] },
    { listen: false },
  )
  t.after(() => kernel.stop())
  const { database, tokens, signers } = parts[0]!
  const app = kernel.listeners['conductor']!
  const internal = kernel.listeners['internal']!
  const gateway = kernel.listeners['gateway']!
  const runner = kernel.listeners['runner']!
  const workers = kernel.listeners['workers']!
  const sidecar = kernel.listeners['sidecar']!

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
  return { app, internal, gateway, runner, workers, sidecar, database, signers, call, issue }
}
