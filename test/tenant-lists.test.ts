import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { join } from 'node:path'
import { boot, definePlugin } from '#kernel'
import { Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { freshDatabase } from '#testing'
import { loadRole, root } from '../kernel/config.ts'
import { issueKey } from '../plugins/auth/keys.service.ts'

// What the role file gives to some tenants, asked for by another one over the API.

const secret = Buffer.alloc(32, 7).toString('base64')

/** The development role on a database, with these settings of its plugins. */
async function started(t: TestContext, dsn: string, settings: Readonly<Record<string, object>>) {
  const parts: { database: Database; tokens: Tokens }[] = []
  const probe = definePlugin({
    name: 'probe',
    requires: { database: Database, tokens: Tokens },
    setup: async ({ deps }) => (parts.push(deps), {}),
  })
  const env = {
    POSTGRES_DSN: dsn,
    AGENT_API_KEY_PEPPER: secret,
    CHAT_GATEWAY_SIGNING_KEY_CURRENT: secret,
    AGENT_ORC_WEBHOOK_KEY: secret,
    AGENT_ORC_WORKER_SIGNING_KEY_CURRENT: secret,
    RUNNER_BASE_URL: 'http://runner.test:7060',
    AGENT_ORC_WORKER_BASE_URL: 'http://runner.test:7061',
    LOG_LEVEL: 'silent',
  }
  const role = await loadRole(join(root, 'config/dev.yaml'), { env })
  const plugins = role.plugins.map((entry) => ({
    ...entry,
    config: { ...(entry.config as object), ...settings[entry.name] },
  }))
  const kernel = await boot({ ...role, plugins: [...plugins, { name: 'probe', plugin: probe }] }, { listen: false })
  t.after(() => kernel.stop())
  const { database, tokens } = parts[0]!
  const keyOf = async (tenantId: string) =>
    (await issueKey(database, tokens, { tenantId, role: 'owner', label: 'owner', createdBy: 'test' })).token
  const keys = { acme: await keyOf('acme'), globex: await keyOf('globex') }
  return async (tenant: keyof typeof keys, method: 'POST' | 'PUT' | 'GET', url: string, body?: object) => {
    const reply = await kernel.listeners['conductor']!.inject({
      method,
      url,
      headers: { authorization: `Bearer ${keys[tenant]}` },
      ...(body ? { payload: body } : {}),
    })
    const { error, message } = reply.json() as { error?: string; message?: string }
    return { status: reply.statusCode, error, message }
  }
}

test('a tenant has no MCP server, model or private receiver that the role file gives to another one', async (t) => {
  const dsn = await freshDatabase(t)
  const before = await started(t, dsn, {})
  const pro = { model: 'openai/gpt-5-pro' }
  assert.equal((await before('globex', 'POST', '/api/profiles', { name: 'old', ...pro })).status, 201)

  const call = await started(t, dsn, {
    'mcp-catalog': {
      servers: {
        files: { url: 'https://files.test/mcp', tenants: ['acme'] },
        search: { url: 'https://search.test/mcp', tenants: '*' },
      },
    },
    'model-access': { models: { 'openai/gpt-5-pro*': { tenants: 'acme' } } },
    webhooks: { allowHosts: ['hooks.internal:8443=acme'] },
  })
  for (const method of ['POST', 'PUT'] as const) {
    const write = (tenant: 'acme' | 'globex', more: object) =>
      call(tenant, method, method === 'POST' ? '/api/profiles' : '/api/profiles/p', { name: 'p', ...more })
    assert.deepEqual(await write('globex', { mcpServers: ['search', 'files'] }), {
      status: 400,
      error: 'unknown_mcp_server: files',
      message: 'There is no MCP server of that name for this tenant; there are: search.',
    })
    const refused = await write('globex', pro)
    assert.deepEqual([refused.status, refused.error], [400, 'unknown_model'])
    assert.match(
      refused.message!,
      /'openai\/gpt-5-pro' for this tenant; it may use: every model that is not in the list/,
    )
    const taken = await write('acme', { mcpServers: ['search', 'files'], ...pro })
    assert.equal(taken.status, method === 'POST' ? 201 : 200, taken.message)
  }
  // A profile from before is no way around, neither as it is nor as an older version of itself.
  const run = await call('globex', 'POST', '/api/runs', { profile: 'old', prompt: 'hello' })
  assert.deepEqual([run.status, run.error], [400, 'unknown_model'])
  const restored = await call('globex', 'POST', '/api/profiles/old/versions/1/restore', {})
  assert.deepEqual([restored.status, restored.error], [400, 'unknown_model'])

  const webhook = { url: 'http://hooks.internal:8443/hook' }
  const told = await call('globex', 'POST', '/api/runs', { profile: 'old', prompt: 'hello', webhook })
  assert.deepEqual([told.status, told.error], [400, 'invalid_webhook'])
  assert.equal((await call('globex', 'POST', '/api/profiles', { name: 'mine' })).status, 201)
  const publish = await call('globex', 'POST', '/api/profiles/mine/publish', { webhookUrl: webhook.url })
  assert.deepEqual([publish.status, publish.error], [400, 'invalid_webhook'])
  const owned = await call('acme', 'POST', '/api/profiles/p/publish', { webhookUrl: webhook.url })
  assert.equal(owned.status, 201, owned.message)
})
