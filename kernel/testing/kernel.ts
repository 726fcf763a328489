import type { TestContext } from 'node:test'
import { boot, type BootOptions, type Capability, definePlugin, type Entry, type Plugin, type Running } from '#kernel'
import { RunStore } from '#contracts/run-store'
import { createLogger } from '../kit/logger.ts'
import { load } from './database.ts'

export interface TestKernel extends Running {
  /** The log as parsed JSON lines, for tests that say that something is or is not logged. */
  readonly logs: readonly Record<string, unknown>[]
}

export interface TestKernelOptions extends BootOptions {
  /** Names of the listeners to open on free ports; all those of the standard roles unless given. */
  readonly listeners?: readonly string[]
  readonly requests?: boolean
}

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
    { listen: false, log, ...options },
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
