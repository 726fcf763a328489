import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import type { TestContext } from 'node:test'
import { setTimeout as wait } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Entry, Plugin } from '#kernel'
import { type LaunchOrder, type SandboxProvider, SandboxProviders, type SandboxState } from '#contracts/sandbox'
import { workerVariables } from '#contracts/wire/worker'
import { entriesOf } from './kernel.ts'
import { startSuiteRunner, type SuiteSession } from './sandbox-runner.ts'

/** The command that starts the suite's worker; a stand-in for a remote substrate runs it with the environment it was given. */
export const suiteWorker: readonly string[] = [
  process.execPath,
  fileURLToPath(new URL('./sandbox-worker.ts', import.meta.url)),
]

/** An order as the suite makes it, with fresh names; `fields` are laid over it. */
export function testOrder(runnerUrl: string, fields: Partial<LaunchOrder> = {}): LaunchOrder {
  const sessionId = fields.sessionId ?? `sess-00000000-${randomBytes(4).toString('hex')}`
  return {
    name: `ao-${randomBytes(8).toString('hex')}`,
    owner: 'suite000',
    tenantId: 'default',
    sessionId,
    resources: {},
    runnerUrl,
    command: suiteWorker,
    ...fields,
    env: {
      [workerVariables.token]: randomBytes(16).toString('hex'),
      [workerVariables.sessionId]: sessionId,
      ...fields.env,
    },
  }
}

/** Boots `plugins` in a test kernel, for every tenant unless they say otherwise, and takes the provider `name` out of it; undefined when it is not offered. */
export const sandboxProviderOf = async (
  t: Pick<TestContext, 'after'>,
  name: string,
  plugins: readonly (Plugin | Entry)[],
): Promise<SandboxProvider | undefined> => {
  const entries = plugins.map((one) => {
    const { plugin, ...entry } = 'plugin' in one ? one : { plugin: one, name: one.name, config: {} }
    return { ...entry, plugin, config: { tenants: '*', ...(entry.config as object) } }
  })
  return (await entriesOf(t, SandboxProviders, entries)).get(name)
}

export interface Started {
  readonly order: LaunchOrder
  readonly sandboxId: string
  readonly session: SuiteSession
}

/** A provider, and the suite's runner that its workers poll. */
export interface Launches {
  readonly provider: SandboxProvider
  order(fields?: Partial<LaunchOrder>): LaunchOrder
  session(sessionId: string): SuiteSession
  launch(fields?: Partial<LaunchOrder>): Promise<Started>
  /** Launches a sandbox and waits for the first poll of its worker. */
  start(fields?: Partial<LaunchOrder>): Promise<Started>
  becomes(sandboxId: string, state: SandboxState): Promise<void>
  /** Destroys whatever was launched; after the test it happens by itself. */
  end(): Promise<void>
}

export async function openLaunches(
  t: Pick<TestContext, 'after'>,
  provider: SandboxProvider,
  laid: Partial<LaunchOrder> = {},
): Promise<Launches> {
  const runner = await startSuiteRunner(t)
  const launched = new Set<string>()
  const launches: Launches = {
    provider,
    session: (id) => runner.session(id),
    order: (fields) => testOrder(runner.url, { ...laid, ...fields, env: { ...laid.env, ...fields?.env } }),
    async launch(fields) {
      const order = launches.order(fields)
      const { sandboxId } = await provider.launch(order, new AbortController().signal)
      launched.add(sandboxId)
      return { order, sandboxId, session: runner.session(order.sessionId) }
    },
    async start(fields) {
      const order = launches.order(fields)
      const first = runner.session(order.sessionId).polled(({ token }) => token === order.env[workerVariables.token])
      const started = await launches.launch(order)
      await first
      return started
    },
    becomes: (id, state) => until(async () => (await provider.status(id)) === state, `${id} ${state}`),
    async end() {
      for (const id of launched) {
        // A sandbox that the test has ended is not destroyed again after it, when its provider may be closed.
        launched.delete(id)
        await provider.destroy(id)
      }
    },
  }
  t.after(() => launches.end())
  return launches
}

/** Waits until `holds` is true. Its attempts and the test's own timeout bound it. */
export async function until(holds: () => Promise<boolean>, what: string): Promise<void> {
  for (let attempt = 0; !(await holds()); attempt++) {
    assert.ok(attempt < 2_000, `never ${what}`)
    await wait(10)
  }
}

/** Processes of this machine whose environment or command line holds `marker`, each as its id and its command. */
export function processesWith(marker: string): string[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .flatMap((pid) => {
      const command = read(`/proc/${pid}/cmdline`)
      const found = command.includes(marker) || read(`/proc/${pid}/environ`).includes(marker)
      return found ? [`${pid} ${command.replaceAll('\0', ' ').slice(0, 200)}`] : []
    })
}

/** Empty when the process has ended or belongs to another user. */
function read(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
