import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { type Operation, operationsOf } from './openapi-operations.ts'
import { startConductor } from './conductor.ts'
import { type Fixtures, nameOf, unknownIds, urlOf } from './route-table.ts'
import { valuesOf } from './schema-values.ts'

type Conductor = Awaited<ReturnType<typeof startConductor>>
type Call = (method: Operation['method'], url: string, body?: unknown) => Promise<{ status: number; body: unknown }>

const caller =
  (conductor: Conductor, key: string): Call =>
  async (method, url, body) => {
    // Of a stream that goes on only the status is read.
    const reply = await conductor.app.inject({
      method,
      url,
      payloadAsStream: true,
      headers: {
        authorization: `Bearer ${key}`,
        'x-tenant-id': 'initech',
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { payload: JSON.stringify(body) }),
    })
    if (String(reply.headers['content-type']).includes('event-stream')) {
      reply.stream().destroy()
      return { status: reply.statusCode, body: 'a stream' }
    }
    const chunks: Buffer[] = []
    for await (const chunk of reply.stream()) chunks.push(chunk as Buffer)
    const text = Buffer.concat(chunks).toString()
    const json = String(reply.headers['content-type']).includes('json;')
    return { status: reply.statusCode, body: json ? (JSON.parse(text) as unknown) : text }
  }

/** Creates one of everything that belongs to a tenant and has an id. */
async function belongings(conductor: Conductor, ownerKey: string, tenantId: string): Promise<Fixtures> {
  const call = caller(conductor, ownerKey)
  const must = async <T>(method: Operation['method'], url: string, body: unknown): Promise<T> => {
    const reply = await call(method, url, body)
    assert.ok(reply.status < 300, `${method} ${url}: ${reply.status} ${JSON.stringify(reply.body)}`)
    return reply.body as T
  }
  // Publishing needs credit.
  const credit = [tenantId, 'cred_initech', 'grants', 'grant', 'initech-grant']
  const paid = { text: 'SELECT billing_credit($1, $2, 1000000, $3, $4, $5)', values: credit }
  const asked = {
    text: `INSERT INTO billing_checkouts (tenant_id, id, provider, cents, created_by) VALUES ($1, 'chk_1111', 'ledger', 500, 'x')`,
    values: [tenantId],
  }
  await conductor.database.batch(tenantId, [paid, asked])
  await must('PUT', '/api/billing/budgets', { budgets: [{ scope: 'tenant', per: 'month', capCents: 7_777 }] })
  const pool = await must<{ id: string }>('POST', '/api/pools', { name: 'initech-pool' })
  await must('POST', '/api/profiles', { name: 'initech-agent', instructions: 'Initech’s secret.' })
  await must('POST', '/api/profiles/initech-agent/publish', { slug: 'initech-slug' })
  const key = await must<{ id: string }>('POST', '/api/profiles/initech-agent/keys', { label: 'initech-key' })
  const memory = await must<{ id: string }>('POST', '/api/profiles/initech-agent/memories', {
    processedContent: 'Initech’s password is initech.',
    endUserId: 'initech-person',
  })
  const apiKey = await must<{ id: string }>('POST', '/api/api-keys', { label: 'initech-api-key' })
  await must('POST', '/api/secrets', { name: 'initech-secret', value: 'Initech’s password' })
  await must('POST', '/api/skills', { name: 'initech-skill', description: 'Initech’s way.', body: 'Initech’s secret.' })
  await must('PUT', '/api/storage/objects/initech/object', { initech: 'secret' })
  const upload = await must<{ id: string; sha256: string }>('POST', '/api/attachments', { initech: 'picture' })
  const boundary = 'initech-part'
  const folder = await conductor.app.inject({
    method: 'POST',
    url: '/api/skills/import',
    headers: { authorization: `Bearer ${ownerKey}`, 'content-type': `multipart/form-data; boundary=${boundary}` },
    payload: `--${boundary}\r\ncontent-disposition: form-data; name="files"; filename="initech-staged/SKILL.md"\r\n\r\n---\nname: initech-staged\ndescription: d\n---\n\r\n--${boundary}--\r\n`,
  })
  const { stagingId } = folder.json<{ stagingId: string }>()
  await must('POST', '/api/mcp/catalog', { name: 'initech-server', url: 'https://initech.example/mcp' })
  // A run that waits for a decision: whoever else sees any of it would see all.
  const nodes = [{ id: 'ask', type: 'approval', message: 'Initech’s question' }]
  const definition = await must<{ id: string }>('POST', '/api/workflows/definitions', { name: 'initech-flow', nodes })
  const order = { workflowDefinitionId: definition.id, cron: '0 0 1 1 *' }
  const schedule = await must<{ id: string }>('POST', '/api/workflows/schedules', order)
  const flow = await must<{ id: string }>('POST', '/api/workflows/runs', { workflowDefinitionId: definition.id })
  let approval: { id: string } | undefined
  while (!approval) [approval] = await must<{ id: string }[]>('GET', '/api/approvals', undefined)
  // Written as a conductor leaves them: nothing is executed here.
  const { database } = conductor
  const messageId = `msg_${'a'.repeat(32)}`
  const connectionId = `conn_${'a'.repeat(33)}`
  await database.batch(tenantId, [
    {
      text: `INSERT INTO sessions (tenant_id, id, profile, runtime, profile_snapshot, status, run_count)
             VALUES ($1, 'sess-initech1', 'initech-agent', 'general', '{}', 'idle', 1)`,
      values: [tenantId],
    },
    {
      text: `INSERT INTO runs (tenant_id, id, session_id, profile, status, prompt, claim_owner, claim_epoch, finished_at, ordinal)
             VALUES ($1, 'run-initech', 'sess-initech1', 'initech-agent', 'ok', 'Initech’s question', 'x', 1, now(), 1)`,
      values: [tenantId],
    },
    {
      text: `INSERT INTO linked_object_runs (tenant_id, run_id, key) VALUES ($1, 'run-initech', $2)`,
      values: [tenantId, upload.id],
    },
    {
      text: `INSERT INTO conversations (tenant_id, id, published_id, end_user_id) VALUES ($1, 'conv_initech', 'pub_x', 'initech-person')`,
      values: [tenantId],
    },
    {
      text: `INSERT INTO public_runs (tenant_id, id, published_id, conversation_id, run_id, status, end_user_id, finished_at)
             VALUES ($1, 'prun_initech', 'pub_x', 'conv_initech', 'run-initech', 'ok', 'initech-person', now())`,
      values: [tenantId],
    },
    {
      text: `INSERT INTO mcp_discoveries (tenant_id, name, address, tools, tool_count, listed_at)
             VALUES ($1, 'initech-server', 'streamable-http https://initech.example/mcp',
               '[{"name":"initech-tool","inputSchema":{},"digest":""}]', 1, now())`,
      values: [tenantId],
    },
    {
      text: `INSERT INTO app_connections (tenant_id, id, provider, toolkit, end_user_id, state)
             VALUES ($1, $2, 'mcp', 'initech-server', 'initech-person', 'revoked')`,
      values: [tenantId, connectionId],
    },
    {
      text: `INSERT INTO webhook_deliveries (tenant_id, id, run_id, url, state) VALUES ($1, $2, 'run-initech', 'https://initech.example/', 'dead')`,
      values: [tenantId, messageId],
    },
  ])
  return {
    '/api/api-keys/{id}': apiKey.id,
    '/api/apps/{toolkit}': 'initech-server',
    '/api/apps/{toolkit}/connections/{id}': connectionId,
    '/api/billing/checkouts/{tenantId}': tenantId,
    '/api/billing/checkouts/{tenantId}/{id}': 'chk_1111',
    // A provider and a month belong to no tenant.
    '/api/billing/events/{provider}': unknownIds['/api/billing/events/{provider}']!,
    '/api/billing/statements/{month}': unknownIds['/api/billing/statements/{month}']!,
    '/api/end-users/{id}': 'initech-person',
    '/api/mcp/catalog/{name}': 'initech-server',
    '/mcp/catalog/{name}': 'initech-server',
    '/api/pools/{id}': pool.id,
    '/api/profiles/{name}': 'initech-agent',
    '/api/profiles/{name}/keys/{keyId}': key.id,
    '/api/profiles/{name}/memories/{id}': memory.id,
    '/api/profiles/{name}/versions/{version}': '1',
    '/api/runs/{id}': 'run-initech',
    '/api/runs/{id}/objects/{sha256}': upload.sha256,
    // A provider belongs to no tenant.
    '/api/sandbox-events/{provider}': unknownIds['/api/sandbox-events/{provider}']!,
    '/api/secrets/{name}': 'initech-secret',
    '/api/secrets/{name}/versions/{version}': '1',
    '/api/sessions/{id}': 'sess-initech1',
    '/api/skills/import/{stagingId}': stagingId,
    '/api/skills/{name}': 'initech-skill',
    '/api/storage/objects/{*}': 'initech/object',
    '/api/tenants/{id}': tenantId,
    '/api/vfs/{*}': 'files/objects/initech/object',
    '/api/approvals/{id}': approval.id,
    '/api/webhooks/deliveries/{id}': messageId,
    '/api/workflows/definitions/{id}': definition.id,
    '/api/workflows/runs/{id}': flow.id,
    '/api/workflows/runs/{id}/nodes/{nodeId}': 'ask',
    '/api/workflows/runs/{id}/signals/{name}': 'go',
    '/api/workflows/schedules/{id}': schedule.id,
  }
}

/** Writes whose caller chooses the id. */
const chosen = ['PUT /api/storage/objects/{*}']

const sampleBody = (operation: Operation): unknown =>
  operation.body === undefined ? undefined : fc.sample(valuesOf(operation.body, [], false), { seed: 7, numRuns: 1 })[0]

const comparable = ({ status, body }: { status: number; body: unknown }, ids: Fixtures): unknown => {
  let text = JSON.stringify({ status, body }).replace(/"request_id":"[^"]*"/, '')
  // An answer may repeat what the caller wrote; one id may be a part of another.
  for (const id of Object.values(ids).toSorted((a, b) => b.length - a.length)) text = text.replaceAll(id, '·')
  return text
}

test('T4: every route answers another tenant’s ids as it answers ids that nobody has, and changes nothing', async (t) => {
  const conductor = await startConductor(t, { AGENT_ORC_BILLING: 'ledger' })
  await conductor.database.systemBatch([
    {
      text: `INSERT INTO tenants (id, name) VALUES ('initech', 'Initech'), ('globex', 'Globex') ON CONFLICT DO NOTHING`,
    },
  ])
  const { token: initechKey } = await conductor.issue('initech', 'owner')
  const initech = caller(conductor, initechKey)
  const globex = caller(conductor, (await conductor.issue('globex', 'owner')).token)
  const theirs = await belongings(conductor, initechKey, 'initech')
  const operations = (await operationsOf(conductor.app)).filter(({ path }) => /^\/(api|mcp)\//.test(path))
  const named = operations.filter(({ path }) => path.includes('{'))
  const missing = Object.keys(unknownIds).filter((path) => !(path in theirs))
  assert.deepEqual(missing, [], 'every resource of the route table is among the belongings of the tenant in this test')

  // Metrics of a moving window differ in each answer.
  const reads = named.filter(({ method, path }) => method === 'GET' && !path.endsWith('/metrics'))
  const seen = async (): Promise<unknown[]> => {
    const answers: unknown[] = []
    for (const operation of reads) answers.push([nameOf(operation), await initech('GET', urlOf(operation, theirs))])
    return answers
  }
  const before = JSON.stringify(await seen()).replaceAll(/"request_id":"[^"]*"/g, '')

  // First, because its own log will show what this tenant tries.
  const secrets = ['initech', 'Initech', ...Object.values(theirs).filter((id) => id.length > 4)]
  for (const operation of operations.filter(({ method, path }) => method === 'GET' && !path.includes('{'))) {
    const { body } = await globex('GET', operation.path)
    for (const secret of secrets) {
      assert.ok(!JSON.stringify(body).includes(secret), `${nameOf(operation)} shows ${secret} to another tenant`)
    }
  }

  for (const operation of named) {
    const body = sampleBody(operation)
    // Who chooses the id of what it writes gets a thing of its own, whoever else has one of that id.
    if (chosen.includes(nameOf(operation))) continue
    const foreign = await globex(operation.method, urlOf(operation, theirs), body)
    const unknown = await globex(operation.method, urlOf(operation), body)
    assert.equal(comparable(foreign, theirs), comparable(unknown, unknownIds), nameOf(operation))
    // A force-terminate always answers with its report, a month with the caller's own statement; the runs of a profile outlive it, and
    // nobody's are none.
    const nothing = /\/(terminate|\{month\})$/.test(operation.path) || JSON.stringify(foreign.body) === '[]'
    assert.ok(foreign.status >= 400 || nothing, `${nameOf(operation)}: ${foreign.status}`)
  }
  for (const { method, path } of named.filter((operation) => chosen.includes(nameOf(operation)))) {
    const { status } = await globex(method, urlOf({ path }, theirs), 'of globex')
    assert.equal(status, 201)
  }
  assert.equal(JSON.stringify(await seen()).replaceAll(/"request_id":"[^"]*"/g, ''), before)
})

test('T4: another tenant’s ids inside a body are unknown ones, too', async (t) => {
  const conductor = await startConductor(t, { AGENT_ORC_BILLING: 'ledger' })
  await conductor.database.systemBatch([
    {
      text: `INSERT INTO tenants (id, name) VALUES ('initech', 'Initech'), ('globex', 'Globex') ON CONFLICT DO NOTHING`,
    },
  ])
  const { token: initechKey } = await conductor.issue('initech', 'owner')
  const globex = caller(conductor, (await conductor.issue('globex', 'owner')).token)
  await belongings(conductor, initechKey, 'initech')
  const same = async (url: string, foreign: object, unknown: object, status: number): Promise<void> => {
    const [a, b] = [await globex('POST', url, foreign), await globex('POST', url, unknown)]
    assert.equal(a.status, status, JSON.stringify(a.body))
    const plain = (answer: unknown): string =>
      JSON.stringify(answer)
        .replace(/"request_id":"[^"]*"/, '')
        .replaceAll(/initech-agent|sess-initech1|initech-pool|nobody|sess-nobody01|no-pool/g, '·')
    assert.equal(plain(a), plain(b), url)
  }
  await same('/api/runs', { profile: 'initech-agent', prompt: 'x' }, { profile: 'nobody', prompt: 'x' }, 400)
  await globex('POST', '/api/profiles', { name: 'mine' })
  await same(
    '/api/runs',
    { profile: 'mine', prompt: 'x', sessionId: 'sess-initech1' },
    { profile: 'mine', prompt: 'x', sessionId: 'sess-nobody01' },
    404,
  )
  await same('/api/profiles', { name: 'p', pool: 'initech-pool' }, { name: 'p', pool: 'no-pool' }, 400)
})
