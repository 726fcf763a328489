import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { startToolServer } from '#testing'
import { createSigner } from '../../plugins/auth/signing/signer.ts'
import { proofHeaders } from '../../plugins/vfs/client.ts'
import { tlsHost } from '../../plugins/sandboxes/test/hosts.ts'
import { chat, chatStream } from './client.ts'
import { type Cluster, eventually, parts, startCluster } from './cluster.ts'
import { dumpOf, formsOf, foundIn, foundInMemory, textsIn } from './needles.ts'
import { bootRole } from './roles.ts'
import { hasBubblewrap, shell, startWithSandboxes } from './sandbox-roles.ts'

// Invariant K2: plain values go to whom they are for, and nowhere else, whatever fails on the way.

const random = (): string => randomBytes(24).toString('base64')
/** With what URLs and JSON write otherwise. */
const canaries = {
  token: `canary "token"+${random()}`,
  newer: `canary "newer"+${random()}`,
  echoed: `canary/echoed?${random()}`,
  lines: `canary\r\nlines: ${random()}`,
  signing: `whsec_${randomBytes(32).toString('base64')}`,
  refused: `canary&refused ${random()}`,
} as const

/** Answers everything with what it was sent, as an error. */
async function echoServer(t: TestContext): Promise<{ url: string; seen: string[] }> {
  const seen: string[] = []
  const server = createServer((request, response) => {
    const told = JSON.stringify(request.headers)
    seen.push(told)
    response.writeHead(401, { 'content-type': 'application/json', 'www-authenticate': 'Bearer' }).end(told)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.after(() => {
    server.closeAllConnections()
    server.close()
  })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`, seen }
}

/** The role file of the conductor with servers that are sent secrets. */
async function roleFile(folder: string, urls: Readonly<Record<string, string>>): Promise<string> {
  const text = await readFile(new URL('../../config/conductor.yaml', import.meta.url), 'utf8')
  const servers = Object.entries(urls).map(
    ([name, url]) => `${name}: { url: '${url}', headers: { authorization: 'Bearer secret://${name}' }, tenants: '*' }`,
  )
  const path = join(folder, 'conductor.yaml')
  await writeFile(path, text.replace('servers: {}', `servers: { ${servers.join(', ')} }`))
  return path
}

interface Run {
  readonly runId: string
  readonly sessionId: string
  readonly status: string
  readonly error?: { readonly code: string; readonly message: string }
}

async function finished(cluster: Cluster, body: object): Promise<Run> {
  const accepted = await cluster.api<Run>('POST', '/api/runs', body)
  assert.equal(accepted.status, 202, JSON.stringify(accepted.body))
  return eventually('the run ends', async () => {
    const run = (await cluster.api<Run>('GET', `/api/runs/${accepted.body.runId}`)).body
    return ['queued', 'running'].includes(run.status) ? undefined : run
  })
}

const textOf = async (url: string, init: RequestInit = {}): Promise<string> => {
  const response = await fetch(url, init)
  return `${JSON.stringify([...response.headers])}\n${await response.text()}`
}

test('the forms of a value are found in the middle of other text', () => {
  const { token } = canaries
  for (const around of ['', 'x', 'xy', 'xyz']) {
    const text = Buffer.from(`${around}${token}${around}`)
    for (const coded of [text.toString(), text.toString('base64'), text.toString('base64url'), text.toString('hex')]) {
      assert.deepEqual(foundIn(coded, canaries), ['token'])
    }
  }
  assert.deepEqual(foundIn(`?q=${encodeURIComponent(token)} ${JSON.stringify({ token })}`, canaries), ['token'])
  assert.ok(formsOf(token).every((form) => form.length > 20))
})

test('K2: no plain value of a secret is in logs, errors, events, files, metrics, the database or saved state', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'ao-canary-'))
  t.after(() => rm(folder, { recursive: true }))
  const runsDir = join(folder, 'runs')
  await mkdir(runsDir)
  const tools = await startToolServer(t, { look: async () => ({ text: 'seen' }) })
  const echo = await echoServer(t)
  const vfsKey = randomBytes(32)
  const cluster = await startCluster(t, 'four', {
    files: { conductor: await roleFile(folder, { token: tools.url, echoed: echo.url, lines: tools.url }) },
    env: {
      AGENT_ORC_MASTER_KEY: randomBytes(32).toString('base64'),
      VFS_INTERNAL_SIGNING_KEY_CURRENT: vfsKey.toString('base64'),
      AGENT_ORC_WEBHOOK_KEY: randomBytes(32).toString('base64'),
      AGENT_ORC_WEBHOOK_ALLOW_HOSTS: `${new URL(echo.url).host}=*`,
      AGENT_ORC_WORKFLOW_ALLOW_HOSTS: `${new URL(echo.url).host}=*`,
      AGENT_ORC_RUNS_DIR: runsDir,
      LOG_LEVEL: 'trace',
      LOG_REQUESTS: 'true',
    },
  })
  /** Everything that anybody was told. */
  const told: string[] = []
  const api = async <T>(method: string, path: string, body?: unknown): Promise<{ status: number; body: T }> => {
    const reply = await cluster.api<T>(method, path, body)
    told.push(JSON.stringify(reply.body))
    return reply
  }

  for (const name of ['token', 'echoed', 'lines', 'signing'] as const) {
    assert.equal((await api('POST', '/api/secrets', { name, value: canaries[name] })).status, 201)
  }
  // What is refused is not repeated.
  const { refused: value } = canaries
  for (const body of [
    { name: value, value },
    { name: 'a', value: [value] },
    { name: 'a', value, secret: value },
    { name: 'a', value, key: value },
    { name: 'a', value, expiresAt: value },
    { name: 'token', value },
    { name: 'a', value: value.repeat(5_000) },
  ]) {
    const { status } = await api('POST', '/api/secrets', body)
    assert.ok(status >= 400 && status < 500, String(status))
  }
  const headers = { authorization: `Bearer ${cluster.bootstrap}`, 'content-type': 'application/json' }
  const broken = { method: 'POST', headers, body: `{"name":"a","value":"${encodeURIComponent(value)}"` }
  told.push(await textOf(`${cluster.conductorUrl}/api/secrets`, broken))

  const agent = await cluster.agent('looker')
  const withServers = (...mcpServers: string[]) =>
    api<{ error?: string }>('PUT', '/api/profiles/looker', { model: 'openai/stand-in', mcpServers })
  await api('PUT', '/api/webhooks/secret', { secret: 'secret://signing' })
  const webhook = { url: echo.url }

  assert.equal((await withServers('token', 'echoed')).status, 200)
  const looks = () => cluster.model.next({ toolCalls: [{ name: 'mcp__token__look', arguments: {} }] }, { text: 'done' })
  looks()
  const ran = await finished(cluster, { profile: 'looker', prompt: 'look', webhook })
  assert.equal(ran.status, 'ok', cluster.output().slice(-2_000))
  assert.ok(tools.tokens.includes(`Bearer ${canaries.token}`), 'the server was sent the value')
  assert.ok(echo.seen.some((one) => one.includes(JSON.stringify(canaries.echoed).slice(1, -1))))

  // The session goes on with the new value; so does a chat.
  await api('PUT', '/api/secrets/token', { value: canaries.newer })
  looks()
  const next = await finished(cluster, { profile: 'looker', prompt: 'again', sessionId: ran.sessionId, webhook })
  assert.equal(next.status, 'ok')
  assert.equal(tools.tokens.at(-1), `Bearer ${canaries.newer}`)
  looks()
  told.push(JSON.stringify((await chat(agent, { message: 'look' })).body))
  looks()
  for await (const frame of (await chatStream(agent, { message: 'look' })).frames) told.push(JSON.stringify(frame))

  // The same servers through the endpoint of the catalog and as apps; the one that repeats what it was sent fails.
  const rpc = async (method: string, params: object): Promise<string> => {
    const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method, params })
    const accepting = { ...headers, accept: 'application/json, text/event-stream' }
    const text = await textOf(`${cluster.conductorUrl}/mcp/catalog`, { method: 'POST', headers: accepting, body })
    told.push(text)
    return text
  }
  assert.match(await rpc('tools/list', {}), /token__look/)
  assert.match(await rpc('tools/call', { name: 'token__look', arguments: {} }), /seen/)
  assert.match(await rpc('tools/call', { name: 'echoed__look', arguments: {} }), /does not accept the credentials/)
  await api('POST', '/api/mcp/catalog/echoed/test')
  const ofApp = await api('POST', '/api/apps/token/call', { name: 'look', arguments: {} })
  assert.match(JSON.stringify(ofApp.body), /seen/)
  assert.equal(tools.tokens.at(-1), `Bearer ${canaries.newer}`)
  await api('POST', '/api/apps/echoed/call', { name: 'look', arguments: {} })
  await mountOf(cluster, { folder, vfsKey, echo, told })

  // Nodes of a workflow: an address that repeats the secret that it is sent, servers with secrets, a person who is asked meanwhile.
  const seen = echo.seen.length
  const http = { type: 'http', url: echo.url, headers: { authorization: 'Bearer secret://echoed' } }
  const nodes = [
    { ...http, id: 'expected', expect: [401] },
    { id: 'looks', type: 'tool', tool: 'token/look', arguments: {} },
    { id: 'asks', type: 'approval', dependsOn: ['expected'], message: 'Of {{ nodes.expected.output }}', expiresIn: 1 },
    { ...http, id: 'refused', dependsOn: ['asks', 'looks'] },
  ]
  const definition = { name: 'canaries', nodes, onFailure: 'fail', webhook }
  const begun = await api<{ id: string }>('POST', '/api/workflows/runs', {
    definition,
    input: { of: 'secret://token' },
  })
  const flow = `workflows/runs/${begun.body.id}`
  await eventually('the workflow is over', async () => {
    const { body } = await api<{ status: number }>('GET', `/api/${flow}`)
    return body.status > 3 && body
  })
  assert.equal(echo.seen.length > seen, true)
  assert.match(told.at(-1)!, /"authorization":"Bearer \*+"/)

  // Values that cannot be sent, were changed behind our back, or are gone end their runs, and say which it was.
  const ending = async (): Promise<string | undefined> => {
    const run = await finished(cluster, { profile: 'looker', prompt: 'look' })
    told.push(JSON.stringify(run))
    return run.error?.code
  }
  await withServers('lines')
  assert.equal(await ending(), 'secret_unfit')
  await withServers('token')
  await changed(cluster.dsn, `UPDATE secret_versions SET ciphertext = ciphertext || 'x' WHERE name = 'token'`)
  assert.equal(await ending(), 'secret_unreadable')
  await api('DELETE', '/api/secrets/token')
  assert.equal(await ending(), 'unknown_secret: token')
  const unnamed = await withServers('token')
  assert.deepEqual([unnamed.status, unnamed.body.error], [400, 'unknown_secret: token'])

  // The signed plane gives out what it is for, and tells nobody else.
  assert.match(await resolved(cluster, vfsKey, 'default'), /canary\/echoed/)
  told.push(await resolved(cluster, randomBytes(32), 'default'), await resolved(cluster, vfsKey, 'acme'))
  await eventually('a delivery has failed', async () =>
    JSON.stringify((await api('GET', '/api/webhooks/deliveries')).body).includes('answered 401'),
  )

  for (const path of [
    'secrets',
    'secrets/echoed/versions',
    'secrets/echoed/reads',
    'audit?limit=200',
    'mcp/catalog',
    'apps',
    'apps/token/tools',
    flow,
    'approvals',
    'profiles/looker/memories',
    'storage/objects',
    'webhooks/deliveries',
    'limits',
    'runs',
    'sessions',
  ])
    await api('GET', `/api/${path}`)
  for (const { runId } of [ran, next]) {
    await api('GET', `/api/runs/${runId}`)
    await api('GET', `/api/runs/${runId}/events`)
    told.push(await textOf(`${cluster.conductorUrl}/api/runs/${runId}/stream`, { headers }))
  }
  told.push(await textOf(`${cluster.conductorUrl}/api/${flow}/stream`, { headers }))
  const state = `${cluster.runnerUrl}/runner/sessions/${ran.sessionId}/state`
  told.push(await textOf(state, { headers: { 'x-tenant-id': 'default' } }))
  for (const part of parts) told.push(await textOf(`${cluster.operationsUrl(part)}/metrics`))

  assert.deepEqual(foundIn(told.join('\n'), canaries), [], 'in what was answered')
  const output = cluster.output()
  assert.match(output, /\/internal\/secrets\/resolve/, 'each request is logged')
  assert.deepEqual(foundIn(output, canaries), [], 'in the logs')
  const files = await readdir(runsDir, { recursive: true, withFileTypes: true })
  const journals = await Promise.all(
    files.filter((file) => file.isFile()).map((file) => readFile(join(file.parentPath, file.name), 'utf8')),
  )
  assert.ok(journals.some((text) => text.includes('seen')))
  assert.deepEqual(foundIn(journals.join('\n'), canaries), [], 'in the files')
  const dump = await dumpOf(cluster.dsn, 'default')
  assert.match(dump.get('public.secret_versions')!, /echoed/)
  for (const [table, rows] of dump) assert.deepEqual(foundIn(rows, canaries), [], `in ${table}`)
})

test('K2: no plain value is in a sandbox whose runner sends it to a host: not in memory, environment, files or state', async (t) => {
  if (!(await hasBubblewrap(t))) return
  // Says to its caller what it was sent, as the tools of developers do.
  const host = await tlsHost(t, ({ headers }, response) =>
    response.writeHead(200, { 'x-echo': String(headers.authorization) }).end(JSON.stringify(headers)),
  )
  const folder = await mkdtemp(join(tmpdir(), 'ao-canary-'))
  t.after(() => rm(folder, { recursive: true }))
  // Sandboxes run as other users when this process is root.
  await chmod(folder, 0o711)
  const runsDir = join(folder, 'runs')
  await mkdir(runsDir)
  const cluster = await startWithSandboxes(t, 'four', {
    AGENT_ORC_SANDBOX_PROVIDERS: 'bubblewrap',
    AGENT_ORC_SANDBOX_DIR: folder,
    AGENT_ORC_MASTER_KEY: randomBytes(32).toString('base64'),
    AGENT_ORC_EGRESS_OWN_HOSTS: `${host.name}=*`,
    AGENT_ORC_EGRESS_CA: fileURLToPath(new URL('../certificates/ca.pem', import.meta.url)),
    AGENT_ORC_RUNS_DIR: runsDir,
    LOG_LEVEL: 'trace',
    LOG_REQUESTS: 'true',
  })
  for (const name of ['token', 'echoed'] as const)
    await cluster.api('POST', '/api/secrets', { name, value: canaries[name] })
  const headers = { authorization: 'Bearer secret://token', 'x-second': 'secret://echoed' }
  const egress = [{ host: host.name, headers }]
  const profile = { name: 'coder', model: 'openai/stand-in', workerMode: 'sandbox', tools: ['shell'], egress }
  assert.equal((await cluster.api('POST', '/api/profiles', profile)).status, 201)
  const command = `curl -si --noproxy '' http://${host.name}/v1/x?q=1 | tee answer; env > environment; curl -s http://${host.name}2/`
  const ran = await shell(cluster, command)
  await cluster.api('PUT', '/api/secrets/token', { value: canaries.newer })
  const again = await shell(cluster, command, ran.sessionId)
  assert.deepEqual(
    host.asked.map(({ headers: sent }) => [sent.authorization, sent['x-second']]),
    [
      [`Bearer ${canaries.token}`, canaries.echoed],
      [`Bearer ${canaries.newer}`, canaries.echoed],
    ],
  )

  // The reference is in its memory, so that the search is seen to find something.
  const { token, newer, echoed } = canaries
  const values = { token, newer, echoed, reference: 'Bearer secret://token' }
  assert.deepEqual(await foundInMemory(ran.sessionId, values), ['reference'])
  const files = await textsIn(folder)
  assert.match(files, /x-echo: Bearer \*+.*http_proxy=/s)
  assert.deepEqual(foundIn(files, canaries), [], 'in its files, or in those of runs')
  const told = [ran.said, again.said]
  const state = `${cluster.runnerUrl}/runner/sessions/${ran.sessionId}/state`
  told.push(await textOf(state, { headers: { 'x-tenant-id': 'default' } }))
  for (const path of ['profiles', 'runs', `sessions/${ran.sessionId}`, 'audit'])
    told.push(JSON.stringify((await cluster.api('GET', `/api/${path}`)).body))
  for (const part of parts) told.push(await textOf(`${cluster.operationsUrl(part)}/metrics`))
  assert.match(told.join('\n'), /runner_egress_requests_total\{place="own",status="2xx"\} 2/)
  await eventually('the reads are written down', async () =>
    JSON.stringify((await cluster.api('GET', '/api/secrets/token/reads')).body).includes('"reader":"egress/localhost"'),
  )
  assert.deepEqual(foundIn(told.join('\n'), canaries), [], 'in what was answered')
  const output = cluster.output()
  assert.match(output, /"status":200[^\n]*"msg":"egress"/)
  assert.doesNotMatch(output, /v1\/x|q=1/)
  assert.deepEqual(foundIn(output, canaries), [], 'in the logs')
  for (const [table, rows] of await dumpOf(cluster.dsn, 'default'))
    assert.deepEqual(foundIn(rows, canaries), [], `in ${table}`)
})

/** A bucket of the tenant, with its secrets as credentials, at a service that answers with what it was sent. */
async function mountOf(
  { internalUrl }: Cluster,
  {
    folder,
    vfsKey,
    echo,
    told,
  }: { folder: string; vfsKey: Buffer; echo: { url: string; seen: string[] }; told: string[] },
): Promise<void> {
  const { origin, host } = new URL(echo.url)
  const server = await bootRole('vfs', {
    VFS_INTERNAL_SIGNING_KEY_CURRENT: vfsKey.toString('base64'),
    CONDUCTOR_INTERNAL_URL: internalUrl,
    AGENT_ORC_VFS_DIR: join(folder, 'vfs'),
    AGENT_ORC_VFS_OWN_HOSTS: `${host}=*`,
    VFS_PORT: '0',
    AGENT_ORC_OPERATIONS_PORT: '0',
    LOG_LEVEL: 'trace',
    LOG_REQUESTS: 'true',
  })
  try {
    const kv = { claim: () => Promise.reject(new Error('this signer verifies nothing')) }
    const signer = createSigner({ family: 'vfs', current: vfsKey, kv: kv as never, onRefused() {} })
    const ask = async (method: string, target: string, body = ''): Promise<string> => {
      const digest = body && createHash('sha256').update(body).digest('hex')
      const proof = proofHeaders(signer, { tenant: 'default', method, target, session: '', digest })
      const headers = { ...proof, ...(body ? { 'content-type': 'application/json' } : {}) }
      return textOf(server.urls['vfs'] + target, { method, headers, ...(body ? { body } : {}) })
    }
    const credentials = { accessKeyId: 'secret://echoed', secretAccessKey: 'secret://token' }
    const mount = { kind: 's3', bucket: 'data', endpoint: origin, ...credentials }
    told.push(await ask('PUT', '/vfs/mounts/bucket', JSON.stringify(mount)))
    const before = echo.seen.length
    told.push(
      await ask('GET', '/vfs/list/bucket'),
      await ask('GET', '/vfs/files/bucket/a'),
      await ask('GET', '/vfs/mounts'),
    )
    assert.ok(echo.seen.length > before, told.slice(-3).join('\n'))
    told.push(await textOf(`${server.urls['operations']}/metrics`))
  } finally {
    await server.end()
  }
  assert.match(server.output.join(''), /the S3 server answered 401/)
  assert.deepEqual(foundIn(server.output.join(''), canaries), [], 'in the log of the VirtualFS')
  assert.deepEqual(foundIn(await textsIn(join(folder, 'vfs')), canaries), [], 'in the folder of the VirtualFS')
}

async function changed(dsn: string, statement: string): Promise<void> {
  const client = new pg.Client({ connectionString: dsn })
  await client.connect()
  await client.query(`SELECT set_config('app.tenant_id', 'default', false)`)
  await client.query(statement)
  await client.query(`SELECT pg_notify('secrets', 'default/token')`)
  await client.end()
}

/** What the internal listener says to whoever signs with a key for a tenant. */
async function resolved(cluster: Cluster, key: Buffer, tenant: string): Promise<string> {
  const kv = { claim: () => Promise.reject(new Error('this signer verifies nothing')) }
  const signer = createSigner({ family: 'vfs', current: key, kv: kv as never, onRefused() {} })
  const [target, body] = ['/internal/secrets/resolve', JSON.stringify({ ref: 'secret://echoed' })]
  const signed = signer.sign({ tenant, method: 'POST', target, body: Buffer.from(body) })
  const headers = { ...signed, 'content-type': 'application/json' }
  return textOf(`${cluster.internalUrl}${target}`, { method: 'POST', headers, body })
}
