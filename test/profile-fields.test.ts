import assert from 'node:assert/strict'
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { parseEnv } from 'node:util'
import { Value } from '@sinclair/typebox/value'
import type { TSchema } from '@sinclair/typebox'
import { boot, type Plugin, type Running } from '#kernel'
import { type Profile, ProfileInput } from '#contracts/profiles'
import { defineRuntime } from '#contracts/runtime'
import { freshDatabase } from '#testing'
import { loadRole, root } from '../kernel/config.ts'

// The profile is made from the schema, so a new field is sent along every path without being named here.

/** Fields whose value has to name something that exists. Every other one gets a value of its schema. */
const named: Partial<ProfileInput> = {
  name: 'whole',
  id: 'prof_whole',
  runtime: 'recorder',
  model: 'builtin/other',
  tools: ['calculate'],
  skills: ['using-pdf'],
  mcpServers: ['files'],
  apps: ['files'],
  requireApproval: ['calculate'],
  sandbox: { provider: 'process', template: 'python', resources: { memoryMb: 64 } },
  egress: [{ host: 'api.example.com', paths: ['/v1'], methods: ['GET'], headers: { 'x-team': 'agents' } }],
  pool: 'gpu',
}
/** What a client may send back and the server computes. */
const computed = ['workerPlacement']
const fields = Object.keys(ProfileInput.properties).filter((field) => !computed.includes(field))

/** A value that differs from every default, with all optional parts. */
function valueOf(schema: TSchema): unknown {
  if (schema['const'] !== undefined) return schema['const']
  const choices = schema['anyOf'] as TSchema[] | undefined
  if (choices) return valueOf(choices.at(-1)!)
  switch (schema['type']) {
    case 'string':
      return 'text'
    case 'boolean':
      return schema['default'] !== true
    case 'integer':
    case 'number':
      return (schema['maximum'] as number | undefined) ?? ((schema['minimum'] as number | undefined) ?? 0) + 1
    case 'array':
      return [valueOf(schema['items'] as TSchema)]
    case 'object': {
      const properties = schema['properties'] as Record<string, TSchema> | undefined
      if (!properties) return { key: ['value'] }
      return Object.fromEntries(Object.entries(properties).map(([name, one]) => [name, valueOf(one)]))
    }
    default:
      return assert.fail(`a value for ${JSON.stringify(schema)} has to be given in 'named'`)
  }
}

function wholeProfile(): Record<string, unknown> {
  const whole: Record<string, unknown> = { ...named }
  for (const [field, schema] of Object.entries<TSchema>(ProfileInput.properties)) {
    if (computed.includes(field)) continue
    whole[field] ??= valueOf(schema)
    assert.notDeepEqual(whole[field], schema['default'], `${field} must differ from its default to be missed`)
  }
  assert.ok(Value.Check(ProfileInput, whole), JSON.stringify([...Value.Errors(ProfileInput, whole)]))
  return whole
}

/** What a runtime gets: the index of the skills follows the instructions, and the tools that read them follow the others. */
const given = (profile: Profile): object => ({
  ...written(profile),
  instructions: profile.instructions.replace(/\n\n# Skills\n[^]*- using-pdf: Reads PDF files\.$/, ''),
  tools: profile.tools.filter((tool) => !['skill_read', 'skill_resource', 'run_skill_script'].includes(tool)),
})

/** The fields of an answer that a client may write. */
const written = (profile: object): object =>
  Object.fromEntries(Object.entries(profile).filter(([field]) => fields.includes(field)))

/** Conductor, runner and sidecar as they run apart, with HTTP between them; the sidecar has a runtime that keeps what it gets. */
async function startFleet(t: TestContext) {
  const folder = await mkdtemp(join(tmpdir(), 'ao-fields-'))
  t.after(() => rm(folder, { recursive: true }))
  await mkdir(join(folder, 'using-pdf'))
  await writeFile(
    join(folder, 'using-pdf/SKILL.md'),
    '---\nname: using-pdf\ndescription: Reads PDF files.\n---\n# PDF\n',
  )
  const sample = parseEnv(await readFile(join(root, 'config/check.env'), 'utf8'))
  const common = {
    ...sample,
    POSTGRES_DSN: await freshDatabase(t),
    REDIS_URL: '',
    RUNNER_BASE_URL: '',
    VFS_BASE_URL: '',
    // The test asks the runner as it is, and its MCP server is on this machine.
    RUNNER_SIGNING_KEY_CURRENT: '',
    AGENT_ORC_RUNNER_HOSTS: '',
    AGENT_ORC_MCP_HOSTS: '',
    AGENT_ORC_SKILLS_DIR: folder,
    AGENT_ORC_BOOTSTRAP_KEY: 'bootstrap-of-the-test-0123456789abcdef',
    AGENT_ORC_SANDBOX_PROCESS: 'true',
    AGENT_ORC_SANDBOX_TENANTS: '*',
    AGENT_ORC_WORKER_PORT: '0',
    AGENT_ORC_OPERATIONS_PORT: '0',
    LOG_LEVEL: 'silent',
  }
  const start = async (name: string, env: Record<string, string>, ...added: Plugin[]): Promise<Running> => {
    const role = await loadRole(join(root, `config/${name}.yaml`), { env: { ...common, ...env } })
    const plugins = role.plugins.map((entry) =>
      entry.name === 'mcp-catalog'
        ? { ...entry, config: { servers: { files: { url: 'http://127.0.0.1:1/', tenants: ['*'] } } } }
        : entry,
    )
    const kernel = await boot({
      ...role,
      plugins: [...plugins, ...added.map((plugin) => ({ name: plugin.name, plugin }))],
    })
    t.after(() => kernel.stop())
    return kernel
  }
  const ran: Profile[] = []
  const recorder = defineRuntime({
    name: 'recorder',
    create: async () => ({
      contract: 'runtime/1',
      async *run({ profile }) {
        ran.push(profile)
        yield { type: 'result', text: 'done', finishReason: 'stop' }
      },
    }),
  })
  const sidecar = await start('sidecar', { PORT: '0' }, recorder)
  const settings = { SIDECAR_URL: sidecar.urls['sidecar']!, RUNNER_DRAIN: '0s' }
  let runner = await start('runner', { ...settings, RUNNER_PORT: '0' })
  const runnerUrl = runner.urls['runner']!
  const conductor = await start('conductor', { PORT: '0', INTERNAL_PORT: '', RUNNER_URLS: runnerUrl })
  const call = async <T>(method: string, path: string, body?: object): Promise<T> => {
    const response = await fetch(`${conductor.urls['conductor']}${path}`, {
      method,
      headers: { authorization: `Bearer ${common.AGENT_ORC_BOOTSTRAP_KEY}`, 'content-type': 'application/json' },
      body: body === undefined ? null : JSON.stringify(body),
    })
    const text = await response.text()
    assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`)
    return (text === '' ? undefined : JSON.parse(text)) as T
  }
  return {
    call,
    onRunner: async () => {
      const answer = await fetch(`${runnerUrl}/runner/profiles`, { headers: { 'x-tenant-id': 'default' } })
      return (await answer.json()) as Profile[]
    },
    /** Runs it and resolves to the profile that its runtime got. */
    async run(task: object): Promise<{ profile: Profile; sessionId: string }> {
      const { runId, sessionId } = await call<{ runId: string; sessionId: string }>('POST', '/api/runs', task)
      for (;;) {
        const { status, error } = await call<{ status: string; error?: object }>('GET', `/api/runs/${runId}`)
        if (status === 'ok') return { profile: ran.at(-1)!, sessionId }
        assert.ok(['queued', 'running'].includes(status), `${status} ${JSON.stringify(error)}`)
        await new Promise((resolve) => setTimeout(resolve, 10))
      }
    },
    /** The runner forgets everything, as after a crash. */
    async restartRunner(): Promise<void> {
      await runner.stop()
      runner = await start('runner', { ...settings, RUNNER_PORT: new URL(runnerUrl).port })
    },
  }
}

test('every field of a profile is stored, listed, versioned, restored and told to runners as it was written', async (t) => {
  const { call, onRunner } = await startFleet(t)
  const whole = wholeProfile()
  await call('POST', '/api/pools', { name: 'gpu' })
  const created = await call<Profile>('POST', '/api/profiles', whole)
  const paths: Record<string, object> = { 'POST /api/profiles': created }
  paths['GET'] = await call<Profile>('GET', '/api/profiles/whole')
  paths['the list'] = (await call<Profile[]>('GET', '/api/profiles'))[0]!
  paths['the runner'] = (await onRunner())[0]!
  const version = async (n: number) =>
    (await call<{ profile: Profile }>('GET', `/api/profiles/whole/versions/${n}`)).profile
  paths['its version'] = await version(1)
  // What is read may be sent back, and what is left out is at its default again.
  await call('PUT', '/api/profiles/whole', {})
  assert.notDeepEqual(written(await call<Profile>('GET', '/api/profiles/whole')), whole)
  paths['PUT'] = await call<Profile>('PUT', '/api/profiles/whole', created)
  paths['the version of PUT'] = await version(3)
  await call('PUT', '/api/profiles/whole', {})
  paths['restore'] = await call<Profile>('POST', '/api/profiles/whole/versions/1/restore')
  paths['the version of restore'] = await version(5)
  paths['the runner after restore'] = (await onRunner())[0]!
  for (const [path, profile] of Object.entries(paths)) assert.deepEqual(written(profile), whole, path)
})

test('every field of a profile reaches the runtime, by a new session, a later run and a runner that had forgotten it', async (t) => {
  const { call, run, restartRunner } = await startFleet(t)
  // With a worker of its own, a run would be executed by a runtime that is not of this test. What only such a one may have goes
  // to its runner: test/e2e/egress.test.ts.
  const { egress: _, ...whole }: Record<string, unknown> = { ...wholeProfile(), workerMode: 'static' }
  await call('POST', '/api/pools', { name: 'gpu' })
  await call('POST', '/api/profiles', whole)
  const first = await run({ profile: 'whole', prompt: 'one' })
  assert.deepEqual(given(first.profile), whole, 'a new session')
  assert.notEqual(first.profile.instructions, whole['instructions'], 'with the index of its skills')
  assert.ok(first.profile.placement, 'with the pool as it was')
  const { sessionId } = first
  // The session keeps its snapshot, whatever becomes of the profile.
  await call('PUT', '/api/profiles/whole', { runtime: 'recorder' })
  assert.deepEqual((await run({ profile: 'whole', sessionId, prompt: 'two' })).profile, first.profile, 'a later run')
  await restartRunner()
  assert.deepEqual((await run({ profile: 'whole', sessionId, prompt: 'three' })).profile, first.profile, 'hydrated')
})
