import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import { freshDatabase, type ModelServer, redisForTests, startModelServer } from '#testing'
import { eventually } from '../e2e/cluster.ts'
import { bootRole, gone, type Process, spawnRole } from '../e2e/roles.ts'

const root = fileURLToPath(new URL('../../', import.meta.url))

export interface Owners {
  readonly model: ModelServer
  readonly dsn: string
  /** Starts a conductor on the shared stores, runner and sidecar. */
  conductor(env?: Record<string, string>): Promise<Conductor>
}

export interface Conductor {
  readonly process: Process
  api<T = unknown>(method: string, path: string, body?: unknown): Promise<{ status: number; body: T }>
  /** Keeps its main thread busy with one synchronous step, until the returned function is called. */
  block(): Promise<() => Promise<void>>
  signal(name: NodeJS.Signals): void
  kill(): Promise<void>
}

/** A preload by which SIGWINCH, which nothing else listens to, blocks the main thread: from the making of the file `began` until the file `over` is there. */
const blocking = (began: string, over: string): string => {
  const code = `import { existsSync, writeFileSync } from 'node:fs'
    process.on('SIGWINCH', () => {
      writeFileSync(${JSON.stringify(began)}, '')
      while (!existsSync(${JSON.stringify(over)})) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20)
    })`
  return `--import=data:text/javascript,${encodeURIComponent(code)}`
}

interface Times {
  readonly lease?: string
  readonly hungAfter?: string
}

/** One runner and one sidecar, and as many conductors as a test starts, each a process: with a lease of 2 s unless `times` say otherwise. */
export async function startOwners(
  t: TestContext,
  { lease = '2s', hungAfter = '1m' }: Times = {},
): Promise<Owners | undefined> {
  const redis = await redisForTests(t)
  if (redis === undefined) return undefined
  const dsn = await freshDatabase(t)
  const model = await startModelServer(t)
  const folder = await mkdtemp(join(tmpdir(), 'ao-owners-'))
  const role = await readFile(join(root, 'config/conductor.yaml'), 'utf8')
  const config = join(folder, 'conductor.yaml')
  const shortened = `  runs:\n    heartbeat: 500ms\n    lease: ${lease}\n    hungAfter: ${hungAfter}\n    sweep: 300ms\n`
  if (!/^ {2}runs:\n/m.test(role)) throw new Error('config/conductor.yaml has no runs')
  await writeFile(config, role.replace(/^ {2}runs:\n(?: {4}(?:heartbeat|lease|hungAfter|sweep):.*\n)*/m, shortened))
  const bootstrapKey = `bootstrap-${randomBytes(16).toString('hex')}`
  const shared = {
    PATH: process.env['PATH'] ?? '',
    HOME: process.env['HOME'] ?? '',
    POSTGRES_DSN: dsn,
    REDIS_URL: redis,
    AGENT_API_KEY_PEPPER: randomBytes(32).toString('base64'),
    AGENT_ORC_BOOTSTRAP_KEY: bootstrapKey,
    CHAT_GATEWAY_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64'),
    OPENAI_API_KEY: 'stand-in',
    OPENAI_BASE_URL: model.url,
    LOG_LEVEL: 'warn',
    PORT: '0',
    RUNNER_PORT: '0',
    AGENT_ORC_WORKER_PORT: '0',
    AGENT_ORC_OPERATIONS_PORT: '0',
  }
  const running: Process[] = []
  // Nobody kills these, so they need no process.
  const sidecar = await bootRole('sidecar', shared)
  const runner = await bootRole('runner', { ...shared, SIDECAR_URL: sidecar.urls['sidecar']! })
  t.after(async () => {
    for (const { child } of running) child.kill('SIGKILL')
    await Promise.all(running.map(({ child }) => gone(child)))
    await runner.end()
    await sidecar.end()
    await rm(folder, { recursive: true })
  })
  return {
    model,
    dsn,
    async conductor(env = {}) {
      const [began, over] = [join(folder, `${running.length}.began`), join(folder, `${running.length}.over`)]
      const preload = { NODE_OPTIONS: blocking(began, over) }
      const given = { ...shared, RUNNER_URLS: runner.urls['runner']!, ...preload, ...env }
      const started = await spawnRole('conductor', given, config)
      running.push(started)
      return conductorOf(started, bootstrapKey, async () => {
        started.child.kill('SIGWINCH')
        await eventually('it is blocked', async () => existsSync(began))
        return () => writeFile(over, '')
      })
    },
  }
}

function conductorOf(started: Process, bootstrapKey: string, block: Conductor['block']): Conductor {
  return {
    process: started,
    block,
    async api(method, path, body) {
      const response = await fetch(`${started.urls['conductor']!}${path}`, {
        method,
        headers: {
          authorization: `Bearer ${bootstrapKey}`,
          ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      })
      const text = await response.text()
      return { status: response.status, body: (text === '' ? undefined : JSON.parse(text)) as never }
    },
    signal: (name) => void started.child.kill(name),
    async kill() {
      started.child.kill('SIGKILL')
      await gone(started.child)
    },
  }
}

export const profile = { name: 'writer', model: 'openai/stand-in', instructions: 'Be brief.', tools: [] }
