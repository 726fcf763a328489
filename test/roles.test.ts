import assert from 'node:assert/strict'
import { glob, readdir, readFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { parseEnv } from 'node:util'
import { parse } from 'yaml'
import { type LimitName, limitKinds } from '#contracts/limits'
import { BootError, plan } from '#kernel'
import { loadRole } from '../kernel/config.ts'
import { settings } from '../kernel/plan.ts'

const root = fileURLToPath(new URL('..', import.meta.url))
const file = (name: string): string => join(root, 'config', `${name}.yaml`)
const sample = parseEnv(await readFile(join(root, 'config/check.env'), 'utf8'))

for (const name of ['conductor', 'gateway', 'runner', 'sidecar', 'vfs', 'worker', 'dev', 'memory']) {
  test(`config/${name}.yaml plans with the sample environment`, async () => {
    const role = await loadRole(file(name), { env: sample })
    assert.equal(role.name, name)
    assert.equal(plan(role).length, role.plugins.length)
  })

  test(`config/${name}.yaml listens on loopback only, and starts with the schema line for editors`, async () => {
    const role = await loadRole(file(name), { env: sample })
    for (const { host } of Object.values(role.listeners)) assert.equal(host, '127.0.0.1')
    assert.match(await readFile(file(name), 'utf8'), /^# yaml-language-server: \$schema=\.\/role\.schema\.json\n/)
  })
}

test('dev starts the embedded PostgreSQL unless POSTGRES_DSN names a server, and the database follows it', async () => {
  const server = async (env: object): Promise<unknown> => {
    const order = plan(await loadRole(file('dev'), { env: { ...sample, AGENT_ORC_DATA: '/data', ...env } }))
    const names = order.map((entry) => entry.name)
    assert.ok(names.indexOf('embedded-postgres') < names.indexOf('database'))
    assert.deepEqual(order.find((entry) => entry.name === 'database')!.config, {})
    return order.find((entry) => entry.name === 'embedded-postgres')!.config
  }
  assert.deepEqual(await server({ POSTGRES_DSN: '' }), { data: '/data/postgres' })
  assert.deepEqual(await server({ POSTGRES_DSN: 'postgres://x' }), { data: '/data/postgres', dsn: 'postgres://x' })
})

test('the documented default ports hold, and the internal listener is off unless INTERNAL_PORT is set', async () => {
  const ports = async (name: string): Promise<Record<string, number | undefined>> => {
    const role = await loadRole(file(name), { env: { ...sample, INTERNAL_PORT: '' } })
    return Object.fromEntries(Object.entries(role.listeners).map(([listener, { port }]) => [listener, port]))
  }
  assert.deepEqual(await ports('conductor'), { conductor: 8080, internal: undefined, operations: 9180 })
  assert.deepEqual(await ports('gateway'), { gateway: 8090, operations: 9190 })
  assert.deepEqual(await ports('runner'), { runner: 7060, workers: 7061, health: undefined, operations: 9160 })
  assert.deepEqual(await ports('sidecar'), { sidecar: 7070, health: undefined, operations: 9170 })
  assert.deepEqual(await ports('vfs'), { vfs: 7050, health: undefined, operations: 9150 })
  assert.deepEqual(await ports('dev'), {
    gateway: 8090,
    conductor: 8080,
    internal: 0,
    runner: 7060,
    workers: 0,
    sidecar: 7070,
    vfs: 0,
  })
  assert.deepEqual(await ports('memory'), {
    gateway: 8090,
    conductor: 8080,
    internal: undefined,
    runner: 7060,
    sidecar: undefined,
  })
})

test('memory needs no variable and no database: it names the server of none, and all that a database serves is there', async () => {
  const role = await loadRole(file('memory'), { env: {} })
  const order = plan(role).map(({ plugin }) => plugin.name)
  assert.ok(order.includes('no-database') && !order.includes('database') && !order.includes('embedded-postgres'))
  assert.doesNotMatch(await readFile(file('memory'), 'utf8'), /POSTGRES_|PGHOST/)
  const dev = plan(await loadRole(file('dev'), { env: { ...sample, AGENT_ORC_DATA: '/data' } }))
  const needy = dev.filter(({ plugin }) => Object.values(plugin.requires).some(({ id }) => id === 'core.database'))
  assert.deepEqual(
    needy.map(({ plugin }) => plugin.name).filter((name) => !order.includes(name)),
    [],
  )
})

test('a gateway without its variables says everything that is missing, with the lines', async () => {
  await assert.rejects(
    async () => plan(await loadRole(file('gateway'), { env: {} })),
    (error: unknown) => {
      assert.ok(error instanceof BootError)
      assert.match(error.message, /set CONDUCTOR_INTERNAL_URL \(.*config\/gateway\.yaml:\d+\)/)
      return true
    },
  )
})

test('MODE, and the addresses of sidecars, are the variables of the specification', async () => {
  const settings = async (role: string, plugin: string, env: object): Promise<unknown> => {
    const { plugins } = await loadRole(file(role), { env: { ...sample, ...env } })
    return plugins.find(({ name }) => name === plugin)!.config
  }
  const own = { GENERAL_SIDECAR_URL: 'http://g', RUNTIME_A_SIDECAR_URL: 'http://a', RUNTIME_B_SIDECAR_URL: 'http://b' }
  for (const role of ['runner', 'dev']) {
    const links = await settings(role, 'sidecar-links', { ...own, SIDECAR_URL: 'http://all' })
    assert.deepEqual(
      { ...(links as object), tls: undefined },
      { url: 'http://all', general: 'http://g', runtimeA: 'http://a', runtimeB: 'http://b', tls: undefined },
      role,
    )
  }
  for (const role of ['sidecar', 'worker']) {
    const mode = async (env: object) => ((await settings(role, 'run-host', env)) as { mode: string }).mode
    assert.deepEqual([await mode({ MODE: 'runtime_a' }), await mode({})], ['runtime_a', 'all'])
  }
})

test('a sidecar with the variables of a worker is one: without a port, and never without its session', async () => {
  const env = { AGENT_ORC_RUNNER_URL: 'http://runner', AGENT_ORC_WORKER_TOKEN: 't', AGENT_ORC_SESSION_ID: 's-1' }
  const started = (some: object) => loadRole(file('sidecar'), { env: { ...some }, instead: true })
  const worker = await started(env)
  assert.equal(worker.name, 'worker')
  assert.deepEqual(
    Object.values(worker.listeners).map(({ port }) => port),
    [undefined],
  )
  for (const missing of ['AGENT_ORC_RUNNER_URL', 'AGENT_ORC_WORKER_TOKEN']) {
    assert.equal((await started({ ...env, [missing]: '' })).name, 'sidecar')
  }
  const nameless = await started({ ...env, AGENT_ORC_SESSION_ID: '' })
  assert.throws(() => plan(nameless), /config\.sessionId is required; set AGENT_ORC_SESSION_ID/)
})

/** Roles by the plugins of this repository that they list, whole or in part. */
async function rolesByPlugin(): Promise<Map<string, string[]>> {
  const roles = new Map<string, string[]>()
  for (const name of (await readdir(join(root, 'config'))).filter((entry) => entry.endsWith('.yaml')).toSorted()) {
    const { role, plugins } = parse(await readFile(join(root, 'config', name), 'utf8')) as {
      role: string
      plugins: Record<string, { use?: string } | null>
    }
    const uses = Object.entries(plugins).map(([key, entry]) => entry?.use ?? `plugins/${key}`)
    for (const plugin of new Set(uses.map((use) => /^plugins\/([^/]+)/.exec(use)?.[1]))) {
      if (plugin !== undefined) roles.set(plugin, [...(roles.get(plugin) ?? []), role])
    }
  }
  return roles
}

test('plugins/README.md has one line for each plugin, with the roles that use it', async () => {
  const folders: string[] = []
  for await (const file of glob('*/index.ts', { cwd: join(root, 'plugins') })) folders.push(basename(dirname(file)))
  const roles = await rolesByPlugin()
  const lines = (await readFile(join(root, 'plugins/README.md'), 'utf8'))
    .split('\n')
    .filter((line) => line.startsWith('- ['))
  const problems: string[] = []
  const named: string[] = []
  for (const line of lines) {
    const [, name, link, said] = /^- \[([\w-]+)\]\(([\w-]+)\) \(([^)]+)\): \S/.exec(line) ?? []
    if (name === undefined || name !== link) {
      problems.push(`'${line.slice(0, 60)}' is not of the form '- [name](name) (role, role): what it does.'`)
      continue
    }
    if (named.includes(name)) problems.push(`${name} has two lines: keep one`)
    named.push(name)
    if (!folders.includes(name)) {
      problems.push(`plugins/${name} is not there: remove its line, or give it the new name`)
      continue
    }
    const actual = (roles.get(name) ?? ['none']).join(', ')
    if (said !== actual) problems.push(`${name} is used by (${actual}) in config/*.yaml, and its line says (${said})`)
  }
  for (const name of folders.toSorted().filter((folder) => !named.includes(folder))) {
    problems.push(
      `plugins/${name} has no line: add '- [${name}](${name}) (${(roles.get(name) ?? ['none']).join(', ')}): …'`,
    )
  }
  assert.deepEqual(problems, [], `mend plugins/README.md:\n${problems.join('\n')}`)
})

test('no role file switches plain processes on as sandboxes by itself', async () => {
  for (const role of ['dev', 'runner', 'memory', 'sidecar']) {
    const on = async (env: Record<string, string>) => {
      const { plugins } = await loadRole(file(role), { env })
      const found = plugins.find(({ plugin: { name } }) => name === 'process' || name === 'sandbox-process')
      return found && (settings(found) as { allow: boolean }).allow
    }
    const has = role === 'dev' || role === 'runner'
    assert.equal(await on({}), has ? false : undefined, role)
    assert.equal(await on({ AGENT_ORC_SANDBOX_PROCESS: 'true' }), has ? true : undefined, role)
  }
})

/** The limits in a role file, with their variables and defaults. */
async function limitsIn(name: string) {
  const { plugins } = parse(await readFile(file(name), 'utf8')) as {
    plugins: { limits?: Partial<Record<LimitName, string>> }
  }
  return Object.entries(plugins.limits ?? {}).map(([limit, value]) => {
    const [, variable, standard] = /^\$\{(AGENT_ORC_LIMIT_[A-Z_]+):-(\d+)\}$/.exec(value) ?? []
    return { limit: limit as LimitName, variable, standard: Number(standard) }
  })
}

test('a variable of a limit means the same in every role: what conductors show holds everywhere', async () => {
  const shown = await limitsIn('conductor')
  for (const role of ['conductor', 'gateway', 'vfs', 'dev', 'memory']) {
    const limits = await limitsIn(role)
    assert.ok(limits.length > 0, role)
    for (const one of limits) {
      assert.deepEqual(
        one,
        shown.find(({ limit }) => limit === one.limit),
        `${role}.yaml: ${one.limit}`,
      )
      assert.ok(one.variable, `${role}.yaml: ${one.limit} has no variable`)
      assert.equal(one.standard, limitKinds[one.limit].default, `${role}.yaml: the default of ${one.limit}`)
    }
  }
  assert.equal(new Set(shown.map(({ variable }) => variable)).size, shown.length, 'no two limits have one variable')
  const lacks = async (role: string): Promise<LimitName[]> => {
    const has = new Set((await limitsIn(role)).map(({ limit }) => limit))
    return shown.map(({ limit }) => limit).filter((limit) => !has.has(limit))
  }
  assert.deepEqual(await lacks('dev'), [])
  // Without a database, sandboxes and a VirtualFS there is nothing that these could bound.
  assert.deepEqual((await lacks('memory')).toSorted(), [
    'sandboxes',
    'storedBytes',
    'vfsBytes',
    'vfsEntries',
    'vfsSessions',
    'webhookDeliveriesPerMinute',
    'workspaceBytes',
  ])
})

test('what one tenant may cost others is bounded by the role file, in plain sight', async () => {
  const named = (await limitsIn('conductor')).map(({ limit }) => limit)
  const expected: LimitName[] = [
    ...(['readsPerMinute', 'writesPerMinute', 'chatsPerMinute', 'runningRuns', 'queuedRuns', 'openStreams'] as const),
    ...(['sessions', 'sandboxes', 'profiles', 'profileBytes', 'storedBytes', 'eventLogBytesPerDay'] as const),
    ...(['webhookDeliveriesPerMinute', 'delegatedRuns', 'delegationDepth', 'delegatedAtOnce'] as const),
    ...(['attachmentBytes', 'stateBytes', 'workspaceBytes'] as const),
  ]
  assert.deepEqual(
    expected.filter((limit) => !named.includes(limit)),
    [],
  )
})

test('an operator who sets a limit by its variable finds it in every role that keeps it', async () => {
  const env = { AGENT_ORC_LIMIT_CHATS: '600', AGENT_ORC_LIMIT_VFS_BYTES: '1000' }
  const limitsOf = async (role: string) => {
    const { plugins } = await loadRole(file(role), { env: { ...sample, ...env } })
    return settings(plugins.find(({ name }) => name === 'limits')!) as Record<LimitName, number>
  }
  for (const role of ['conductor', 'gateway', 'dev']) assert.equal((await limitsOf(role)).chatsPerMinute, 600, role)
  for (const role of ['conductor', 'vfs', 'dev']) assert.equal((await limitsOf(role)).vfsBytes, 1000, role)
})
