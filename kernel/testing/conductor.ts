import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { parseEnv } from 'node:util'
import type { LightMyRequestResponse } from 'fastify'
import { boot, definePlugin, type Entry, type Plugin, type Running } from '#kernel'
import { type TenantRole, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { loadRole, root } from '../config.ts'
import { freshDatabase } from './database.ts'

/**
 * Boots a role file of ours, with `plugins` in it, on a database of its own. Its variables have the sample values of
 * config/check.env, under `variables`. No port is opened.
 */
export async function testRole(
  t: Pick<TestContext, 'after'>,
  name: 'conductor' | 'dev',
  plugins: readonly (Plugin | Entry)[],
  variables: Readonly<Record<string, string>> = {},
): Promise<Running> {
  const env = {
    ...parseEnv(await readFile(join(root, 'config/check.env'), 'utf8')),
    POSTGRES_DSN: await freshDatabase(t),
    // The sample servers do not exist: PostgreSQL and what is in this process stand in.
    REDIS_URL: '',
    SIDECAR_URL: '',
    AGENT_ORC_DATA: join(root, 'no-such-folder'),
    LOG_LEVEL: 'silent',
    ...variables,
  }
  const role = await loadRole(join(root, `config/${name}.yaml`), { env })
  const added = plugins.map((p): Entry => ('plugin' in p ? p : { name: p.name, plugin: p }))
  const kernel = await boot({ ...role, plugins: [...role.plugins, ...added] }, { listen: false })
  t.after(() => kernel.stop())
  return kernel
}

/** Makes a request of the conductor's API with a key. `body` is sent as JSON. */
export type TestCaller = (
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE',
  url: string,
  body?: unknown,
) => Promise<LightMyRequestResponse>

export interface TestConductor {
  readonly database: Database
  /** Returns a caller with a key of its own. The tenants `default`, `acme` and `globex` exist. */
  caller(tenantId: string, role: TenantRole): Promise<TestCaller>
}

/** The conductor as an operator runs it, with `plugins` in it and their tables in a database of its own. */
export async function testConductor(
  t: Pick<TestContext, 'after'>,
  plugins: readonly (Plugin | Entry)[] = [],
): Promise<TestConductor> {
  const parts: { database: Database; tokens: Tokens }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database, tokens: Tokens },
    setup: async ({ deps }) => (parts.push(deps), {}),
  })
  // Nothing answers at this runner's address: the tests run no profile.
  const kernel = await testRole(t, 'conductor', [...plugins, probe], { RUNNER_URLS: 'http://127.0.0.1:1' })
  const { database, tokens } = parts[0]!
  // Imported here, because other users of the harness need no plugin.
  const { issueKey } = await import('../../plugins/auth/keys.service.ts')
  return {
    database,
    async caller(tenantId, role) {
      const { token } = await issueKey(database, tokens, { tenantId, role, label: role, createdBy: 'test' })
      return (method, url, body) =>
        kernel.listeners['conductor']!.inject({
          method,
          url,
          headers: {
            authorization: `Bearer ${token}`,
            ...(body === undefined ? {} : { 'content-type': 'application/json' }),
          },
          ...(body === undefined ? {} : { payload: JSON.stringify(body) }),
        })
    },
  }
}
