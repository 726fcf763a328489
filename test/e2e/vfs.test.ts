import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { type Cluster, eventually, type Form } from './cluster.ts'
import { bootRole } from './roles.ts'
import { hasBubblewrap, type Run, startWithSandboxes } from './sandbox-roles.ts'

interface Lease {
  readonly sessionId: string
  readonly state: string
  readonly allowedMounts: readonly string[]
}

/** A cluster with a VirtualFS server: that of the one process, or a role of its own. */
async function setup(t: TestContext, form: Form, provider: string): Promise<Cluster> {
  const data = await mkdtemp(join(tmpdir(), 'ao-vfs-'))
  const env = {
    VFS_INTERNAL_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64'),
    RUNNER_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64'),
    AGENT_ORC_STORAGE_DIR: join(data, 'objects'),
    AGENT_ORC_VFS_DIR: join(data, 'vfs'),
    AGENT_ORC_DATA: data,
  }
  const server =
    form === 'single' ? undefined : await bootRole('vfs', { ...env, VFS_PORT: '0', AGENT_ORC_OPERATIONS_PORT: '0' })
  t.after(async () => {
    await server?.end()
    await rm(data, { recursive: true, force: true, maxRetries: 20 })
  })
  const url: Record<string, string> = server ? { VFS_BASE_URL: server.urls['vfs']! } : {}
  const sandboxes = { AGENT_ORC_SANDBOX_PROVIDERS: provider }
  const cluster = await startWithSandboxes(t, form, { ...env, ...url, ...sandboxes }, form === 'four' ? ['runner'] : [])
  const tools = ['shell', 'vfs_list', 'vfs_read', 'vfs_write']
  const profile = { name: 'coder', model: 'openai/stand-in', workerMode: 'sandbox', tools }
  const created = await cluster.api('POST', '/api/profiles', { ...profile, vfs: { allowedMounts: ['objects'] } })
  assert.equal(created.status, 201, JSON.stringify(created.body))
  return cluster
}

/** Has the agent call these tools one after the other, and returns what they answered. */
async function run(cluster: Cluster, calls: readonly (readonly [name: string, input: object])[], sessionId?: string) {
  for (const [name, input] of calls) cluster.model.next({ toolCalls: [{ name, arguments: input }] })
  cluster.model.next({ text: 'Done.' })
  const task = { profile: 'coder', prompt: 'Look around.', ...(sessionId === undefined ? {} : { sessionId }) }
  const begun = await eventually('a runner takes it', async () => {
    const { status, body } = await cluster.api<Run>('POST', '/api/runs', task)
    return status === 202 && body
  })
  const ended = await eventually(
    'the run is over',
    async () => {
      const { body } = await cluster.api<Run>('GET', `/api/runs/${begun.runId}`)
      return body.status !== 'running' && body.status !== 'queued' && body
    },
    90,
  )
  assert.equal(ended.result, 'Done.', `${JSON.stringify(ended)}\n${cluster.output()}`)
  const told = ended.events.filter(({ type }) => type === 'tool_result').map(({ content }) => String(content))
  return { sessionId: ended.sessionId, told }
}

const leases = async (cluster: Cluster): Promise<Lease[]> => (await cluster.api<Lease[]>('GET', '/api/vfs/leases')).body
const leaseOf = (cluster: Cluster, sessionId: string) =>
  cluster.api<Lease & { error?: string }>('GET', `/api/sessions/${sessionId}/vfs-lease`)

test('single: a file of the shell is one of the VirtualFS, for the next session where the mount lets it', async (t) => {
  await story(await setup(t, 'single', 'process'))
})

test('four: the same in a sandbox without a network, and after kill -9 of the runner', async (t) => {
  if (!(await hasBubblewrap(t))) return
  const cluster = await setup(t, 'four', 'bubblewrap')
  const { sessionId } = await story(cluster)
  await cluster.kill('runner')
  await cluster.start('runner')
  await eventually('the runner is back', async () => (await leases(cluster)).length === 0)
  const again = await run(cluster, [['shell', { command: 'cat vfs/scratch/own vfs/objects/report.txt' }]], sessionId)
  assert.deepEqual(again.told, ['mine\nmade by the shell\n[Exit code 0.]'])
  assert.deepEqual(
    (await leases(cluster)).map((lease) => lease.sessionId),
    [sessionId],
  )
})

async function story(cluster: Cluster): Promise<{ readonly sessionId: string }> {
  const nothing = await run(cluster, [])
  assert.deepEqual(await leases(cluster), [], 'a chat that touches no file opens no lease')
  assert.equal((await leaseOf(cluster, nothing.sessionId)).status, 404)

  const command = 'echo made by the shell > vfs/objects/report.txt; echo mine > vfs/scratch/own; ls vfs'
  const first = await run(cluster, [
    ['shell', { command }],
    ['vfs_read', { path: 'objects/report.txt' }],
    ['vfs_write', { path: 'objects/by-tool', content: 'made by the tool' }],
    ['shell', { command: 'cat vfs/objects/by-tool' }],
  ])
  assert.deepEqual(first.told, [
    'objects\nscratch\n[Exit code 0.]',
    'made by the shell\n',
    "'objects/by-tool' is written: 16 bytes.",
    'made by the tool\n[Exit code 0.]',
  ])
  const second = await run(cluster, [
    ['vfs_read', { path: 'objects/report.txt' }],
    ['vfs_read', { path: 'scratch/own' }],
    ['shell', { command: 'find vfs -type f | sort' }],
  ])
  assert.deepEqual(second.told, [
    'made by the shell\n',
    "There is no file 'scratch/own'.",
    'vfs/objects/by-tool\nvfs/objects/report.txt\n[Exit code 0.]',
  ])
  // The API sees the same object, through the proxy and in the store.
  const { body } = await cluster.api<{ content: string }>('GET', '/api/storage/objects/report.txt')
  assert.equal(body.content, 'made by the shell\n')

  const both = [first.sessionId, second.sessionId].toSorted()
  const all = await leases(cluster)
  assert.deepEqual(
    all.map(({ sessionId, state, allowedMounts }) => [sessionId, state, allowedMounts]),
    both.map((id) => [id, 'open', ['objects']]),
  )
  const one = await leaseOf(cluster, first.sessionId)
  assert.deepEqual([one.status, one.body.sessionId, one.body.state], [200, first.sessionId, 'open'])
  assert.equal((await cluster.api('DELETE', `/api/sessions/${second.sessionId}`)).status, 204)
  await eventually('its lease is gone', async () => (await leaseOf(cluster, second.sessionId)).status === 404)
  assert.deepEqual((await leaseOf(cluster, second.sessionId)).body.error, 'no vfs session')
  assert.equal((await leases(cluster)).length, 1)
  return first
}
