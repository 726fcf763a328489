import type { TestContext } from 'node:test'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseEnv } from 'node:util'
import type { LightMyRequestResponse } from 'fastify'
import { boot, type BootOptions, type Capability, definePlugin, type Entry, type Plugin, type Running } from '#kernel'
import { RunStore } from '#contracts/run-store'
import { type TenantRole, Tokens } from '#contracts/auth'
import { Database } from '#contracts/database'
import { type Compilers, createCompilers } from '../kit/compilers.ts'
import { createLogger } from '../kit/logger.ts'
import { freshDatabase, load } from './database.ts'
import { loadRole, root } from '../config.ts'

export interface TestKernel extends Running {
  /** The log as parsed JSON lines, for tests that say that something is or is not logged. */
  readonly logs: readonly Record<string, unknown>[]
}

interface TestKernelOptions extends BootOptions {
  /** Names of the listeners to open on free ports. Absent: all those of the standard roles. */
  readonly listeners?: readonly string[]
  readonly requests?: boolean
}

// Compiling schemas would be most of what the kernels of a process of tests do.
let compilers: Compilers | undefined

export const compilersOfTests = (): Compilers => (compilers ??= createCompilers())

const standard = ['conductor', 'internal', 'gateway', 'runner', 'workers', 'sidecar']

/**
 * Boots the real kernel with the given plugins (or entries, to give one a config) and stops it after the test. Opens no
 * port unless `listen` is true: call routes with `kernel.listeners.conductor.inject(...)`.
 */
export async function testKernel(
  t: Pick<TestContext, 'after'>,
  plugins: readonly (Plugin | Entry)[],
  options: TestKernelOptions = {},
): Promise<TestKernel> {
  const logs: Record<string, unknown>[] = []
  const log = createLogger('test', 'debug', { write: (line: string) => void logs.push(JSON.parse(line)) })
  const running = await boot(
    {
      name: 'test',
      listeners: Object.fromEntries(
        (options.listeners ?? standard).map((name) => [name, { host: '127.0.0.1', port: 0 }]),
      ),
      plugins: plugins.map((p) => ('plugin' in p ? p : { name: p.name, plugin: p })),
      log: { requests: options.requests ?? false },
    },
    { listen: false, log, compilers: compilersOfTests(), ...options },
  )
  t.after(() => running.stop())
  return { ...running, logs }
}

/** Boots `plugins` in a test kernel and returns the entries that they add to a slot, e.g. the runtimes. */
export async function entriesOf<T>(
  t: Pick<TestContext, 'after'>,
  token: Capability<T, 'many'>,
  plugins: readonly (Plugin | Entry)[],
): Promise<ReadonlyMap<string, T>> {
  let found: ReadonlyMap<string, T> = new Map()
  const probe = definePlugin({
    name: 'probe',
    requires: { entries: token as Capability<unknown, 'many'> },
    async setup(ctx) {
      found = ctx.deps.entries as ReadonlyMap<string, T>
      return {}
    },
  })
  await testKernel(t, [...plugins, probe], { listeners: [] })
  return found
}

let fakes = 0

/** A plugin that provides a ready-made value for a capability: `fake(RunDispatch, {...})`. For a slot give `{name: value}`. */
export function fake<T, M extends 'one' | 'many'>(
  token: Capability<T, M>,
  value: M extends 'many' ? Record<string, T> : T,
): Plugin {
  return definePlugin({
    name: `fake-${token.id}-${++fakes}`,
    provides: { value: token as Capability<unknown, 'one'> },
    setup: async () => ({ value }),
  })
}

/** The database plugin on a fresh database, for a test kernel. */
export async function databasePlugin(dsn: string): Promise<Entry> {
  const { default: plugin } = (await load('plugins/database/index.ts')) as { default: Plugin }
  return { name: 'database', plugin, config: { dsn, migrate: false } }
}

/** The object store's disk backend, in a folder that need not exist. Without a folder the backend is not configured. */
export async function diskStoragePlugin(dir: string | undefined): Promise<Entry> {
  const { default: plugin } = (await load('providers/storage-disk/index.ts')) as { default: Plugin }
  return { name: 'storage-disk', plugin, config: dir === undefined ? {} : { dir } }
}

/** Idempotency keys on the test's database, for a test kernel. */
export async function idempotencyPlugin(): Promise<Entry> {
  const { default: plugin } = (await load('plugins/idempotency/index.ts')) as { default: Plugin }
  return { name: 'idempotency', plugin }
}

/** The run store in memory, for a test kernel without runs. */
export async function runStorePlugin(): Promise<Plugin> {
  const { MemoryRunStore } = (await load('plugins/runs/memory/store.ts')) as { MemoryRunStore: new () => RunStore }
  return definePlugin({
    name: 'run-store',
    provides: { store: RunStore },
    setup: async () => ({ store: new MemoryRunStore() }),
  })
}

export interface TestRoleOptions {
  /** Settings by plugin, which replace those of the file. */
  readonly settings?: Readonly<Record<string, object>>
  /** Opens the ports; the variables must then name free ones. */
  readonly listen?: boolean
  /** Absent: as in the role file. */
  readonly preload?: boolean
}

/**
 * Boots one of our role files, with `plugins` added, on a database of its own. Variables have the sample values of config/check.env, unless
 * `variables` sets them.
 */
export async function testRole(
  t: Pick<TestContext, 'after'>,
  name: 'conductor' | 'dev',
  plugins: readonly (Plugin | Entry)[],
  variables: Readonly<Record<string, string>> = {},
  { settings = {}, listen = false, ...asGiven }: TestRoleOptions = {},
): Promise<Running> {
  const data = await mkdtemp(join(tmpdir(), 'agent-orc-data-'))
  t.after(() => rm(data, { recursive: true, force: true }))
  const env = {
    ...parseEnv(await readFile(join(root, 'config/check.env'), 'utf8')),
    POSTGRES_DSN: await freshDatabase(t),
    // The sample servers do not exist, so PostgreSQL and parts of this process replace them.
    REDIS_URL: '',
    SIDECAR_URL: '',
    VFS_BASE_URL: '',
    AGENT_ORC_DATA: data,
    LOG_LEVEL: 'silent',
    // Tests call the ports of runner and sidecar without signatures.
    RUNNER_SIGNING_KEY_CURRENT: '',
    ...variables,
  }
  const role = await loadRole(join(root, `config/${name}.yaml`), { env })
  const added = plugins.map((p): Entry => ('plugin' in p ? p : { name: p.name, plugin: p }))
  const listed = role.plugins.map((entry): Entry => ({
    ...entry,
    config: { ...(entry.config as object), ...settings[entry.name] },
  }))
  const kernel = await boot(
    { ...role, ...asGiven, plugins: [...listed, ...added] },
    { listen, compilers: compilersOfTests() },
  )
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
  // Nothing answers at this runner's address, because the tests run no profile.
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
