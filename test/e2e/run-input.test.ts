import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { asOwnHosts, type ExternalServer, startExternalServer, startToolServer } from '#testing'
import { chat } from './client.ts'
import { type Cluster, eventually, forms, startCluster } from './cluster.ts'

interface Run {
  readonly runId: string
  readonly sessionId: string
  readonly status: string
  readonly result?: string
  readonly subTask: { readonly attachments?: unknown; readonly responseFormat?: unknown }
  readonly events: readonly Record<string, unknown>[]
}

async function finished(cluster: Cluster, body: object): Promise<Run> {
  const accepted = await cluster.api<Run>('POST', '/api/runs', body)
  assert.equal(accepted.status, 202, JSON.stringify(accepted.body))
  return eventually('the run ends', async () => {
    const run = (await cluster.api<Run>('GET', `/api/runs/${accepted.body.runId}`)).body
    return ['queued', 'running'].includes(run.status) ? undefined : run
  })
}
const lastRequest = (cluster: Cluster) => cluster.model.requests.at(-1)!.body

/** The role file with a server of the test in it. */
async function withServer(t: TestContext, role: 'dev' | 'conductor', url: string): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'ao-role-'))
  t.after(() => rm(folder, { recursive: true }))
  const text = await readFile(new URL(`../../config/${role}.yaml`, import.meta.url), 'utf8')
  const server = `{ files: { url: '${url}', headers: { authorization: 'Bearer \${EXTERNAL_KEY}' }, tenants: '*' } }`
  const path = join(folder, `${role}.yaml`)
  await writeFile(path, text.replace('servers: {}', `servers: ${server}`))
  return path
}

/** A server that the tenant enters itself, of which an admin has accepted one tool. */
async function ownServer(server: ExternalServer, cluster: Cluster): Promise<void> {
  const entry = { name: 'own', url: server.url, toolPolicy: 'review' }
  assert.equal((await cluster.api('POST', '/api/mcp/catalog', entry)).status, 201)
  const tools = await cluster.api<{ name: string; digest: string }[]>('GET', '/api/mcp/catalog/own/tools')
  const digests = tools.body.filter(({ name }) => name === 'read').map(({ digest }) => digest)
  assert.equal((await cluster.api('POST', '/api/mcp/catalog/own/accept', { digests })).status, 200)
  const profile = { model: 'openai/stand-in', mcpServers: ['own'] }
  assert.equal((await cluster.api('PUT', '/api/profiles/looker', profile)).status, 200)
  const calls = ['read', 'write'].map((name) => ({ name: `mcp__own__${name}`, arguments: {} }))
  cluster.model.next({ toolCalls: calls }, { text: 'done' })
  const run = await finished(cluster, { profile: 'looker', prompt: 'read' })
  const results = run.events.filter(({ type }) => type === 'tool_result')
  assert.deepEqual(
    results.map(({ name, ok }) => [name, ok]),
    [
      ['mcp__own__read', true],
      ['mcp__own__write', false],
    ],
  )
  assert.deepEqual(server.calls, ['read'])
  await cluster.api('DELETE', '/api/mcp/catalog/own')
  cluster.model.next({ text: 'done' })
  const without = await finished(cluster, { profile: 'looker', prompt: 'read' })
  const told = without.events.find(({ stage }) => stage === 'mcp_server_unavailable')
  assert.deepEqual([told?.['server'], told?.['message']], ['own', 'There is no MCP server of this name any more.'])
}

for (const form of forms) {
  test(`${form}: images, forms of answers and external tools go all the way to the model`, async (t) => {
    const external = await startToolServer(t, { look: async () => ({ text: 'seen outside' }) })
    const own = await startExternalServer(t, { read: {}, write: {} })
    const role = form === 'single' ? 'dev' : 'conductor'
    const files = { [role]: await withServer(t, role, external.url) }
    const cluster = await startCluster(t, form, {
      // Everything stays in the run here; linked-objects.test.ts has the other way.
      env: {
        EXTERNAL_KEY: 'canary-of-the-test',
        AGENT_ORC_MCP_ALLOW_HOSTS: asOwnHosts([own.url]),
        AGENT_ORC_LINK_ABOVE: '8388608',
      },
      files,
    })
    const agent = await cluster.agent('looker')

    const large = Buffer.alloc(4 * 1024 * 1024 - 3, 7).toString('base64')
    const attachments = [{ mediaType: 'image/png', data: large, name: 'large.png' }]
    const responseFormat = {
      type: 'json_schema',
      name: 'seen',
      schema: { type: 'object', properties: { dogs: { type: 'integer' } }, required: ['dogs'] },
    }
    cluster.model.next({ text: 'Two dogs.' }, { text: '{"dogs":2}' })
    const run = await finished(cluster, { profile: 'looker', prompt: 'Count.', attachments, responseFormat })
    assert.equal(run.status, 'ok')
    assert.deepEqual([run.result, run.events.at(-1)!['output']], ['{"dogs":2}', { dogs: 2 }])
    assert.deepEqual(run.subTask.attachments, [
      { mediaType: 'image/png', name: 'large.png', bytes: 4 * 1024 * 1024 - 3 },
    ])
    const [image] = lastRequest(cluster).messages[1]!.content as { image_url: { url: string } }[]
    assert.equal(image!.image_url.url, `data:image/png;base64,${large}`)
    assert.ok(run.events.some(({ stage, supersedes }) => stage === 'output_invalid' && supersedes === 1))

    const data = Buffer.from('small').toString('base64')
    const said = await chat(agent, { message: 'And this?', attachments: [{ mediaType: 'image/png', data }] })
    assert.equal(said.status, 200)
    assert.match(JSON.stringify(lastRequest(cluster).messages), new RegExp(`base64,${data}`))

    const named = (mcpServers: string[]) =>
      cluster.api<{ error?: string }>('PUT', '/api/profiles/looker', { model: 'openai/stand-in', mcpServers })
    assert.deepEqual((await named(['files', 'nowhere'])).body.error, 'unknown_mcp_server: nowhere')
    assert.equal((await named(['files'])).status, 200)
    cluster.model.next({ toolCalls: [{ name: 'mcp__files__look', arguments: {} }] }, { text: 'done' })
    const looked = await finished(cluster, { profile: 'looker', prompt: 'look' })
    const result = looked.events.find(({ type }) => type === 'tool_result')!
    assert.deepEqual([result['name'], result['content']], ['mcp__files__look', 'seen outside'])
    assert.ok(external.tokens.length > 0 && external.tokens.every((token) => token === 'Bearer canary-of-the-test'))
    assert.doesNotMatch(JSON.stringify(looked) + cluster.output(), /canary-of-the-test/)
    await ownServer(own, cluster)
  })
}
