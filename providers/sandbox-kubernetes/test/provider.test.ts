import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { isAppError } from '#kernel'
import type { LaunchOrder } from '#contracts/sandbox'
import { testKernel, until } from '#testing'
import kubernetes from '../index.ts'
import { image, providerOf, setUp } from './support.ts'

const objects = '/apis/agents.x-k8s.io/v1beta1/namespaces/agents/sandboxes'
const create = `POST ${objects}`
const secrets = 'PATCH /api/v1/namespaces/agents/secrets/'
const invalid = (error: unknown): boolean => isAppError(error) && error.code === 'invalid_sandbox'

async function folder(t: TestContext): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'agent-orc-cluster-'))
  t.after(() => rm(path, { recursive: true }))
  return path
}

test('without a namespace the provider is not offered', async (t) => {
  assert.equal(await providerOf(t, {}), undefined)
})

test('without a token that can be read it is not offered, and the log says which settings it needs', async (t) => {
  const { logs } = await testKernel(t, [
    {
      name: 'kubernetes',
      plugin: kubernetes,
      config: { namespace: 'workers', tokenFile: '/nowhere/token', tenants: '*' },
    },
  ])
  assert.ok(logs.some(({ msg }) => /not offered: \/nowhere\/token .*AGENT_ORC_KUBERNETES_TOKEN_FILE/.test(String(msg))))
  assert.equal(await providerOf(t, { namespace: 'workers', tokenFile: '/nowhere/token' }), undefined)
})

test('a profile names a template of the operator, or an image that he lets it choose', async (t) => {
  const templates = { gvisor: { image, pod: { runtimeClassName: 'gvisor' } } }
  const { fake, launch } = await setUp(t, { templates, images: 'ghcr.io/acme/', image: '' })
  const used = async (template: string): Promise<unknown> => {
    const { sandboxId } = await launch({ template })
    const { spec } = fake.sandboxes.get(sandboxId)!.manifest.spec.podTemplate
    return [spec.containers[0]!.image, spec.runtimeClassName]
  }
  assert.deepEqual(await used('gvisor'), [image, 'gvisor'])
  assert.deepEqual(await used('ghcr.io/acme/worker:2'), ['ghcr.io/acme/worker:2', undefined])
  for (const template of ['ghcr.io/evil/x', 'constructor', 'ghcr.io/acme/a b', undefined]) {
    await assert.rejects(launch(template === undefined ? {} : { template }), invalid)
  }
})

test('a limit that Kubernetes cannot keep is refused', async (t) => {
  const { fake, launch } = await setUp(t)
  await assert.rejects(launch({ resources: { pids: 100 } }), invalid)
  assert.equal(fake.requests.length, 0)
})

test('no pod is without limits: what its profile leaves out is set by its template, or by the runner', async (t) => {
  const own = { requests: { memory: '2Gi' }, limits: { memory: '2Gi', cpu: '2' } }
  const templates = { plain: { image }, large: { image, container: { resources: own } } }
  const { fake, launch } = await setUp(t, { templates, memoryMb: 700, cpus: 0.5, diskMb: 90 })
  const used = async (order: Partial<LaunchOrder>): Promise<unknown> => {
    const { sandboxId } = await launch(order)
    const { containers, volumes } = fake.sandboxes.get(sandboxId)!.manifest.spec.podTemplate.spec
    return [containers[0]!['resources'], volumes]
  }
  const tmp = (sizeLimit: string) => [{ name: 'tmp', emptyDir: { sizeLimit } }]
  const usual = { memory: '700Mi', cpu: '0.5', 'ephemeral-storage': '90Mi' }
  assert.deepEqual(await used({ template: 'plain' }), [
    { requests: { ...usual, cpu: '100m' }, limits: usual },
    tmp('90Mi'),
  ])
  const ofTemplate = { ...usual, memory: '2Gi', cpu: '2' }
  assert.deepEqual(await used({ template: 'large' }), [{ requests: ofTemplate, limits: ofTemplate }, tmp('90Mi')])
  const both = { memory: '64Mi', cpu: '2', 'ephemeral-storage': '30Mi' }
  assert.deepEqual(await used({ template: 'large', resources: { memoryMb: 64, diskMb: 30 } }), [
    { requests: both, limits: both },
    tmp('30Mi'),
  ])
})

test('a template that only requests raises the limits of the runner, and never lowers them', async (t) => {
  const more = [
    { memory: '4Gi', cpu: '2' },
    { memory: '1048576Ki', cpu: '1500m' },
    { memory: '800000000', 'ephemeral-storage': '1.5Gi' },
    { memory: '1e9', 'ephemeral-storage': '95M' },
  ]
  const less = { memory: '256Mi', cpu: '100m', 'ephemeral-storage': '94M' }
  const cases = [...more.map((requests) => [requests, requests] as const), [less, {}] as const]
  const templates = Object.fromEntries(
    cases.map(([requests], at) => [`t${at}`, { image, container: { resources: { requests } } }]),
  )
  const { fake, launch } = await setUp(t, { templates, memoryMb: 700, cpus: 1, diskMb: 90 })
  const usual = { memory: '700Mi', cpu: '1', 'ephemeral-storage': '90Mi' }
  for (const [at, [requests, raised]] of cases.entries()) {
    const { sandboxId } = await launch({ template: `t${at}` })
    const { containers } = fake.sandboxes.get(sandboxId)!.manifest.spec.podTemplate.spec
    assert.deepEqual(containers[0]!['resources'], {
      requests: { ...usual, cpu: '100m', ...requests },
      limits: { ...usual, ...raised },
    })
  }
})

test('a profile sets no more than the runner allows', async (t) => {
  const { fake, launch } = await setUp(t, { mostMemoryMb: 2_000, mostCpus: 2, mostDiskMb: 500 })
  for (const resources of [{ memoryMb: 2_001 }, { cpus: 2.5 }, { diskMb: 501 }])
    await assert.rejects(launch({ resources }), invalid)
  assert.equal(fake.requests.length, 0)
  await launch({ resources: { memoryMb: 2_000, cpus: 2, diskMb: 500 } })
})

test('what the cluster finds invalid is refused as well', async (t) => {
  const { fake, launch } = await setUp(t)
  const body = { kind: 'Status', status: 'Failure', reason: 'Invalid', code: 422, message: 'spec: no such thing' }
  fake.plan(create, { status: 422, body })
  await assert.rejects(launch(), invalid)
})

test('a tenant whose name is no label is found by its digest, and named in full beside it', async (t) => {
  const { fake, launch } = await setUp(t)
  const tenantId = `${'a'.repeat(63)}_`
  const { sandboxId } = await launch({ tenantId })
  const { metadata } = fake.sandboxes.get(sandboxId)!.manifest
  assert.match(metadata.labels!['agent-orc/tenant']!, /^sha256-[0-9a-f]{40}$/)
  assert.equal(metadata.annotations!['agent-orc/tenant'], tenantId)
  // What looks like a digest is not taken for one.
  const other = await launch({ tenantId: metadata.labels!['agent-orc/tenant']! })
  const again = fake.sandboxes.get(other.sandboxId)!.manifest.metadata.labels!['agent-orc/tenant']
  assert.notEqual(again, metadata.labels!['agent-orc/tenant'])
})

test('every request is made again after a failure, a lost request, a lost answer and a lost race, to the same end', async (t) => {
  const { fake, provider, start } = await setUp(t, {}, { statusLag: 0 })
  const race = { status: 409, body: { kind: 'Status', status: 'Failure', reason: 'Conflict', code: 409 } }
  const busy = { status: 429, body: { kind: 'Status', status: 'Failure', reason: 'TooManyRequests', code: 429 } }
  for (const fault of [{ status: 500 }, 'lose_request', 'lose_answer', race, busy] as const) {
    const lost = fault === 'lose_answer' || fault === 'lose_request'
    for (const request of [create, secrets, `PATCH ${objects}`]) fake.plan(request, fault)
    const { order, sandboxId } = await start()
    assert.deepEqual([...fake.sandboxes.keys()], [sandboxId])
    assert.deepEqual([...fake.secrets.keys()], [sandboxId])
    for (const request of [secrets, `PATCH ${objects}`, `GET ${objects}`]) fake.plan(request, fault)
    await provider.pause(sandboxId)
    await provider.resume(sandboxId, order)
    if (lost) fake.plan(`DELETE ${objects}`, fault)
    await provider.destroy(sandboxId)
    assert.deepEqual(await fake.remains(), [])
  }
})

test('a launch that fails half way leaves nothing', async (t) => {
  const { fake, launch } = await setUp(t)
  fake.plan(secrets, { status: 403, body: { reason: 'Forbidden', code: 403, message: 'no rights' } })
  await assert.rejects(launch(), /403 no rights/)
  assert.deepEqual(await fake.remains(), [])
})

test('an object of somebody else that has the name already is left alone', async (t) => {
  const { fake, provider, launch } = await setUp(t)
  const { order, sandboxId } = await launch()
  await assert.rejects(launch({ name: order.name, owner: 'another' }), /409/)
  assert.notEqual(await provider.status(sandboxId), 'gone')
  assert.equal(fake.sandboxes.get(sandboxId)!.deleted, false)
})

test('the secret of a sandbox belongs to it, and is renewed before it goes on', async (t) => {
  const { fake, provider, start } = await setUp(t)
  const { order, sandboxId, session } = await start()
  const tokenOf = () => Buffer.from(fake.secrets.get(sandboxId)!.data['AGENT_ORC_WORKER_TOKEN']!, 'base64').toString()
  const [owner] = fake.secrets.get(sandboxId)!.metadata.ownerReferences!
  assert.equal(owner!.uid, fake.sandboxes.get(sandboxId)!.uid)
  assert.equal(JSON.stringify(fake.sandboxes.get(sandboxId)!.manifest).includes(tokenOf()), false)
  await provider.pause(sandboxId)
  const renewed = session.polled(({ token }) => token === 'renewed')
  await provider.resume(sandboxId, {
    ...order,
    name: 'ao-another',
    env: { ...order.env, AGENT_ORC_WORKER_TOKEN: 'renewed' },
  })
  await renewed
  assert.equal(tokenOf(), 'renewed')
})

test('a worker that fails is started again beside its files; one that ends is gone', async (t) => {
  const { fake, provider, start } = await setUp(t)
  const { sandboxId, session } = await start()
  await session.call('write_file', { path: 'kept.txt', content: 'kept' })
  const { machine, pod } = fake.sandboxes.get(sandboxId)!
  const again = session.polled()
  await machine!.halt()
  await until(async () => pod!.starts > 1, 'started again')
  await again
  assert.equal(await session.call('read_file', { path: 'kept.txt' }), 'kept')
  session.shutdown()
  await until(async () => (await provider.status(sandboxId)) === 'gone', 'gone')
  await assert.rejects(provider.pause(sandboxId), (error) => isAppError(error) && error.code === 'sandbox_gone')
  await provider.destroy(sandboxId)
  assert.deepEqual(await fake.remains(), [])
})

test('a pod whose image is not there is starting', async (t) => {
  const { provider, launch } = await setUp(t, {}, { images: {} })
  const { sandboxId } = await launch()
  assert.equal(await provider.status(sandboxId), 'starting')
})

test('a list longer than a page is read to its end', async (t) => {
  const { fake, provider, orderOf, launch } = await setUp(t)
  const first = (await launch()).sandboxId
  const second = (await launch()).sandboxId
  const item = { metadata: { name: first, uid: 'u' }, spec: {} }
  const body = { kind: 'SandboxList', metadata: { continue: '1' }, items: [item] }
  fake.plan(`GET ${objects}?`, { status: 200, body })
  assert.deepEqual(await provider.list!(orderOf().owner), [first, second])
})

test('the token is read from its file when it is needed: Kubernetes replaces it', async (t) => {
  const tokenFile = join(await folder(t), 'token')
  await writeFile(tokenFile, 'first\n')
  const { fake, provider, launch } = await setUp(t, { token: '', tokenFile })
  fake.token = 'first'
  const { sandboxId } = await launch()
  fake.token = 'second'
  await assert.rejects(provider.status(sandboxId), /401/)
  await writeFile(tokenFile, 'second')
  assert.notEqual(await provider.status(sandboxId), 'gone')
})

test('the end of a sandbox is put off while its runner lives, also while it sleeps', async (t) => {
  const { fake, provider, launch } = await setUp(t, { lifetime: '3s' })
  const { sandboxId } = await launch()
  const sandbox = fake.sandboxes.get(sandboxId)!
  await provider.pause(sandboxId)
  const first = sandbox.shutdownTime
  await until(async () => sandbox.shutdownTime !== first, 'put off')
  assert.ok(Date.parse(sandbox.shutdownTime!) > Date.parse(first!))
  assert.equal(await provider.status(sandboxId), 'paused')
})
