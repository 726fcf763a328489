import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { parseEnv } from 'node:util'
import { parseAllDocuments } from 'yaml'
import { BootError, definePlugin, plan, risksOf } from '#kernel'
import { testKernel } from '#testing'
import { loadRole, root } from '../kernel/config.ts'
import health from '../plugins/health/index.ts'

const secret = Buffer.alloc(32).toString('base64')
const risks = async (role: string, env: Record<string, string>): Promise<string[]> =>
  risksOf(await loadRole(join(root, `config/${role}.yaml`), { env }))

test('a runner or a sidecar that answers whoever reaches it is a risk of its role, and so is one that may be led anywhere', async () => {
  const hosts = { AGENT_ORC_RUNNER_HOSTS: '.internal:7060', AGENT_ORC_MCP_HOSTS: 'none' }
  const tls = { AGENT_ORC_TLS_CERT: 'c', AGENT_ORC_TLS_KEY: 'k', AGENT_ORC_TLS_CA: 'a' }
  const key = { RUNNER_SIGNING_KEY_CURRENT: secret }
  for (const role of ['runner', 'sidecar']) {
    const open = new RegExp(`the listener ${role} has no authentication; set RUNNER_SIGNING_KEY_CURRENT`)
    const [first, second, ...rest] = await risks(role, {})
    assert.match(first!, open)
    assert.match(second!, /AGENT_ORC_MCP_HOSTS/)
    assert.deepEqual(rest, [])
    for (const env of [{}, tls, { RUNNER_SIGNING_KEY_PREVIOUS: secret }, { HOST: '0.0.0.0' }]) {
      assert.match((await risks(role, { ...env, ...hosts })).join('\n'), open)
    }
    for (const env of [key, { ...tls, AGENT_ORC_TLS_CLIENT_CERTS: 'true' }]) {
      assert.deepEqual(await risks(role, { ...env, ...hosts }), [])
    }
    assert.equal((await risks(role, key)).length, 1)
  }
  assert.deepEqual(await risks('worker', {}), [], 'it opens no port')
  // Its listeners are for this machine alone, under its own names, until somebody adds one.
  assert.deepEqual(await risks('dev', {}), [])
  assert.equal((await risks('dev', { AGENT_ORC_DEV_HOST: 'dev.example.com' })).length, 4)
})

test('a conductor that asks remote runners without a proof is a risk, as these runners answer anybody', async () => {
  const of = async (env: Record<string, string>) =>
    (await risks('conductor', env)).filter((risk) => risk.startsWith('fleet: '))
  const urls = { RUNNER_URLS: 'http://runner-1.internal:7060, https://runner-2.internal:7060' }
  const secure = { RUNNER_URLS: 'https://runner-1.internal:7060' }
  const certificate = { AGENT_ORC_TLS_CERT: 'c', AGENT_ORC_TLS_KEY: 'k' }
  for (const env of [urls, secure, { ...urls, ...certificate }, { ...urls, RUNNER_SIGNING_KEY_PREVIOUS: secret }]) {
    assert.match((await of(env)).join('\n'), /^fleet: .*no proof of who calls.*set RUNNER_SIGNING_KEY_CURRENT/)
  }
  for (const env of [{}, { ...urls, RUNNER_SIGNING_KEY_CURRENT: secret }, { ...secure, ...certificate }]) {
    assert.deepEqual(await of(env), [])
  }
})

test('beyond loopback a listener that answers under any name, and to anybody, is a risk', async () => {
  const of = async (role: string, env: Record<string, string>) =>
    (await risks(role, env))
      .filter((risk) => risk.startsWith('health: '))
      .map((risk) => /listener (\w+)/.exec(risk)![1])
  const outside = { HOST: '0.0.0.0', INTERNAL_PORT: '8081' }
  assert.deepEqual(await of('conductor', outside), ['conductor', 'internal'])
  assert.deepEqual(await of('conductor', { ...outside, AGENT_ORC_HOSTS: 'api.example.com' }), ['internal'])
  assert.deepEqual(await of('gateway', outside), ['gateway'])
  const named = { AGENT_ORC_HOSTS: 'api.example.com', AGENT_ORC_INTERNAL_HOSTS: 'conductor.internal' }
  const certificates = {
    AGENT_ORC_TLS_CERT: 'c',
    AGENT_ORC_TLS_KEY: 'k',
    AGENT_ORC_TLS_CA: 'a',
    AGENT_ORC_TLS_CLIENT_CERTS: 'true',
  }
  for (const role of ['conductor', 'gateway']) {
    assert.deepEqual(await of(role, { ...outside, ...named }), [])
    assert.deepEqual(await of(role, { INTERNAL_PORT: '8081' }), [], 'on loopback')
  }
  assert.deepEqual(await of('conductor', { ...outside, ...certificates }), ['conductor'])
  const open = { ...outside, HEALTH_PORT: '1', AGENT_ORC_WORKER_HOST: '0.0.0.0', AGENT_ORC_OPERATIONS_HOST: '0.0.0.0' }
  for (const role of ['runner', 'sidecar', 'vfs']) assert.deepEqual(await of(role, open), [], role)
})

test('a bootstrap key beside the keys of owners is a risk; one until there is an owner is none', async () => {
  const key = { AGENT_ORC_BOOTSTRAP_KEY: 'bootstrap-of-the-test-0123456789' }
  const of = async (env: Record<string, string>) =>
    (await risks('conductor', { ...key, ...env })).filter((risk) => risk.startsWith('auth: '))
  assert.deepEqual(await of({}), [])
  assert.match((await of({ AGENT_ORC_BOOTSTRAP: 'always' })).join(), /the bootstrap key acts as owner/)
})

test('every shipped role is without risks as config/check.env has it', async () => {
  const sample = parseEnv(await readFile(join(root, 'config/check.env'), 'utf8')) as Record<string, string>
  for (const role of ['conductor', 'gateway', 'runner', 'sidecar', 'vfs', 'worker', 'dev', 'memory']) {
    assert.deepEqual(await risks(role, sample), [], role)
  }
})

/** Part of a container of a Kubernetes example: a variable has a text, or what the cluster knows. */
interface Container {
  readonly args: readonly string[]
  readonly env: readonly {
    readonly name: string
    readonly value?: string
    readonly valueFrom?: { readonly secretKeyRef?: object; readonly fieldRef?: { readonly fieldPath: string } }
  }[]
}
/** What a pod has of its environment: $(NAME) in a text is a variable above it. */
const environmentOf = ({ env }: Container): Record<string, string> => {
  const fields: Readonly<Record<string, string>> = { 'metadata.name': 'runner-0', 'status.podIP': '10.0.0.7' }
  const known: Record<string, string> = {}
  for (const { name, value = '', valueFrom } of env) {
    const given = valueFrom?.secretKeyRef ? secret : fields[valueFrom?.fieldRef?.fieldPath ?? '']
    known[name] = given ?? value.replaceAll(/\$\((\w+)\)/g, (_, other: string) => known[other]!)
  }
  return known
}

test('the runners of the Kubernetes example can boot as it has them, without a risk', async () => {
  const documents = parseAllDocuments(await readFile(join(root, 'examples/kubernetes/runners.yaml'), 'utf8'))
  const all = documents.map((one) => one.toJS() as { kind: string; spec: unknown })
  const { spec } = all.find(({ kind }) => kind === 'StatefulSet')!
  const [container] = (spec as { template: { spec: { containers: Container[] } } }).template.spec.containers
  const { args } = container!
  const file = join(root, args[args.indexOf('--config') + 1]!)
  const env = environmentOf(container!)
  assert.deepEqual(
    [env['RUNNER_BASE_URL'], env['AGENT_ORC_WORKER_BASE_URL']],
    ['http://runner-0.runners.agent-orc.svc:7060', 'http://10.0.0.7:7061'],
  )
  const role = await loadRole(file, { env })
  plan(role)
  assert.deepEqual(risksOf(role), [])
  // A name that the file does not read would be a setting that does nothing.
  const text = await readFile(file, 'utf8')
  const read = new Set([...text.matchAll(/\$\{([A-Z0-9_|]+)/g)].flatMap(([, names]) => names!.split('|')))
  const own = ['POD_NAME', 'POD_IP']
  assert.deepEqual(
    Object.keys(env).filter((name) => !read.has(name)),
    own,
  )
})

test('risks are in the log of the boot and in /readyz, ready or not', async (t) => {
  const bold = definePlugin({ name: 'bold', risks: () => ['it is bold'], setup: async () => ({}) })
  const kernel = await testKernel(t, [bold, health], { listeners: ['conductor'] })
  const logged = kernel.logs.filter(({ msg }) => msg === 'the configuration of the role has a risk')
  assert.deepEqual(
    logged.map(({ level, risk }) => [level, risk]),
    [[logged[0]!['level'], 'bold: it is bold']],
  )
  const reply = await kernel.listeners['conductor']!.inject('/readyz')
  assert.deepEqual(reply.json(), { ready: true, checks: {}, risks: ['bold: it is bold'] })
})

test('a listener whose certificates cannot work is refused with its line', async () => {
  const tls = async (env: Record<string, string>): Promise<readonly string[]> =>
    loadRole(join(root, 'config/runner.yaml'), { env }).then(
      () => [],
      (error: unknown) => (error instanceof BootError ? error.problems : [String(error)]),
    )
  const [cert, key, ca] = [{ AGENT_ORC_TLS_CERT: 'c' }, { AGENT_ORC_TLS_KEY: 'k' }, { AGENT_ORC_TLS_CA: 'a' }]
  const asked = { AGENT_ORC_TLS_CLIENT_CERTS: 'true' }
  const cases: [Record<string, string>, RegExp][] = [
    [cert, /^listeners\.runner\.tls has a certificate or a key alone; set both .* \(config\/runner\.yaml:\d+\)$/],
    [{ ...key, ...ca }, /^listeners\.runner\.tls has a certificate or a key alone/],
    [asked, /^listeners\.runner\.tls asks for client certificates over plain HTTP/],
    [{ ...cert, ...key, ...asked }, /would accept client certificates of every public authority; set `ca`/],
  ]
  for (const [env, problem] of cases) {
    const found = await tls(env)
    assert.equal(found.length, 1)
    assert.match(found[0]!, problem)
  }
  assert.deepEqual(await tls({ ...cert, ...key, ...ca, ...asked }), [])
})
