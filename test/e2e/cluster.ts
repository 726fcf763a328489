import { randomBytes, randomInt } from 'node:crypto'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import { fileURLToPath } from 'node:url'
import { freshDatabase, type ModelServer, startModelServer } from '#testing'
import { bootRole, endInOrder, processOf, type RoleName, spawnRole, type Started } from './roles.ts'

/** `single`: every plugin is in one role and hops are function calls. `four`: four roles, and hops are HTTP. */
export type Form = 'single' | 'four'
export const forms: readonly Form[] = ['single', 'four']
/** A role that the cluster has in either form. */
export type Part = Exclude<RoleName, 'dev' | 'memory' | 'vfs'>
export const parts: readonly Part[] = ['sidecar', 'runner', 'conductor', 'gateway']

const root = fileURLToPath(new URL('../../', import.meta.url))

export interface Cluster {
  readonly form: Form
  readonly model: ModelServer
  readonly conductorUrl: string
  readonly gatewayUrl: string
  readonly internalUrl: string
  readonly runnerUrl: string
  readonly sidecarUrl: string
  readonly signingKey: Buffer
  /** The key of the owner of tenant `default`. */
  readonly bootstrap: string
  readonly dsn: string
  /** Where a role shows its metrics. */
  operationsUrl(role: Part): string
  /** The process that plays a role, which is apart: in the single form it is always the same one. */
  pid(role: Part): number
  /** kill -9, and wait until it is gone. */
  kill(role: Part): Promise<void>
  /** SIGTERM, and wait until it is gone: its exit code, and how long that took in milliseconds. */
  stop(role: Part): Promise<{ code: number | null; ms: number }>
  /** Starts a killed role again on the port it had. `env` replaces settings of the first start. */
  start(role: Part, env?: Record<string, string>): Promise<void>
  /** Starts one more of a role, on free ports: a process where the role is apart. */
  another(role: Part, env?: Record<string, string>): Promise<Started>
  /** Calls the conductor as the owner of tenant `default`. */
  api<T = unknown>(method: string, path: string, body?: unknown): Promise<{ status: number; body: T }>
  /** Creates a profile on the stand-in model and publishes it. */
  agent(name: string, options?: AgentOptions): Promise<Agent>
  /** What the processes logged, for a failing test. */
  output(): string
}

export interface AgentOptions {
  readonly tools?: readonly string[]
  readonly limits?: Record<string, number>
  readonly publish?: Record<string, unknown>
  readonly model?: string
  readonly onCrash?: 'interrupt' | 'resume' | 'retry'
  readonly requireApproval?: readonly string[]
}

export interface Agent {
  readonly profile: string
  readonly slug: string
  readonly url: string
  readonly key: string
  readonly keyId: string
}

export interface ClusterOptions {
  readonly env?: Readonly<Record<string, string>>
  /** Role files to start from instead of the ones in config/. */
  readonly files?: Partial<Record<RoleName, string>>
  /**
   * The roles that have a process each, because the test kills, stops or looks at them as such. The others run in the
   * process of the test, which has loaded their modules already: most of what a process costs is loading them.
   */
  readonly apart?: readonly Part[]
}

/** Starts the service the way an operator does, from role files and environment; all of it stops after the test. */
export async function startCluster(t: TestContext, form: Form, options: ClusterOptions = {}): Promise<Cluster> {
  const before: (() => Promise<void>)[] = []
  // Registered first, because hooks run in this order: a role stops while its database is there.
  t.after(async () => {
    for (const end of before) await end()
  })
  const dsn = await freshDatabase(t)
  const model = await startModelServer(t)
  const cluster = new Roles(form, dsn, model, options)
  before.push(() => cluster.end())
  await cluster.startAll()
  return cluster
}

class Roles implements Cluster {
  readonly form: Form
  readonly dsn: string
  readonly model: ModelServer
  readonly signingKey = randomBytes(32)
  readonly bootstrap = `bootstrap-${randomBytes(16).toString('hex')}`
  readonly #env: Readonly<Record<string, string>>
  readonly #files: Partial<Record<RoleName, string>>
  readonly #apart: ReadonlySet<RoleName>
  readonly #running = new Map<RoleName, Started>()
  /** What each role was started with, and the ports that it got. */
  readonly #settings = new Map<RoleName, Record<string, string>>()
  readonly #others: Started[] = []

  constructor(form: Form, dsn: string, model: ModelServer, { env = {}, files = {}, apart = [] }: ClusterOptions) {
    this.form = form
    this.dsn = dsn
    this.model = model
    this.#files = files
    this.#apart = new Set(apart.map((part) => this.#roleOf(part)))
    this.#env = {
      PATH: process.env.PATH ?? '',
      HOME: process.env.HOME ?? '',
      POSTGRES_DSN: dsn,
      AGENT_API_KEY_PEPPER: randomBytes(32).toString('base64'),
      AGENT_ORC_BOOTSTRAP_KEY: this.bootstrap,
      CHAT_GATEWAY_SIGNING_KEY_CURRENT: this.signingKey.toString('base64'),
      GATEWAY_RATE_LIMIT_BACKEND: 'memory',
      OPENAI_API_KEY: 'stand-in',
      OPENAI_BASE_URL: model.url,
      LOG_LEVEL: 'warn',
      AGENT_ORC_WORKER_PORT: '0',
      AGENT_ORC_OPERATIONS_PORT: '0',
      ...env,
    }
  }

  get conductorUrl(): string {
    return this.#url('conductor', 'conductor')
  }
  get gatewayUrl(): string {
    return this.#url('gateway', 'gateway')
  }
  get internalUrl(): string {
    return this.#url('conductor', 'internal')
  }
  get runnerUrl(): string {
    return this.#url('runner', 'runner')
  }
  get sidecarUrl(): string {
    return this.#url('sidecar', 'sidecar')
  }

  async startAll(): Promise<void> {
    if (this.form === 'single') {
      const listeners = ['CONDUCTOR', 'GATEWAY', 'RUNNER', 'SIDECAR', 'INTERNAL']
      await this.#launch('dev', Object.fromEntries(listeners.map((name) => [`AGENT_ORC_${name}_PORT`, '0'])))
      return
    }
    const sidecar = await this.#launch('sidecar', { PORT: '0' })
    const runner = await this.#launch('runner', { RUNNER_PORT: '0', SIDECAR_URL: sidecar.urls.sidecar! })
    const env = { PORT: '0', INTERNAL_PORT: '0', RUNNER_URLS: runner.urls.runner! }
    const conductor = await this.#launch('conductor', env)
    await this.#launch('gateway', { PORT: '0', CONDUCTOR_INTERNAL_URL: conductor.urls.internal! })
  }
  async end(): Promise<void> {
    // Runs that wait for the model would be waited for.
    await this.model.stop()
    await Promise.all([...this.#running.values(), ...this.#others].map((started) => started.end()))
  }

  operationsUrl(role: Part): string {
    const { urls } = this.#started(role)
    return urls['operations'] ?? urls[role]!
  }
  pid(role: Part): number {
    return processOf(this.#started(role)).pid!
  }
  async kill(role: Part): Promise<void> {
    processOf(this.#started(role))
    await this.#started(role).end()
  }
  stop(role: Part): Promise<{ code: number | null; ms: number }> {
    return endInOrder(this.#started(role))
  }
  async start(role: Part, env: Record<string, string> = {}): Promise<void> {
    const name = this.#roleOf(role)
    await this.#launch(name, { ...this.#settings.get(name), ...env })
  }
  async another(role: Part, env: Record<string, string> = {}): Promise<Started> {
    const started = await this.#begin(role, { [portVariable(role, role)]: '0', ...env })
    this.#others.push(started)
    return started
  }

  async api<T = unknown>(method: string, path: string, body?: unknown): Promise<{ status: number; body: T }> {
    const response = await fetch(`${this.conductorUrl}${path}`, {
      method,
      headers: {
        authorization: `Bearer ${this.bootstrap}`,
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
    const text = await response.text()
    const json = response.headers.get('content-type')?.includes('application/json') ?? false
    return { status: response.status, body: (json ? JSON.parse(text) : text) as T }
  }
  async agent(name: string, options: AgentOptions = {}): Promise<Agent> {
    const { model = 'openai/stand-in', tools = [], limits, onCrash, publish, requireApproval } = options
    await this.#create('/api/profiles', {
      name,
      model,
      instructions: 'Be brief.',
      tools,
      ...(limits ? { limits } : {}),
      ...(onCrash ? { onCrash } : {}),
      ...(requireApproval ? { requireApproval } : {}),
    })
    const published = await this.#create(`/api/profiles/${name}/publish`, { rateLimitRpm: 10_000, ...publish })
    const key = await this.#create(`/api/profiles/${name}/keys`, { label: 'test' })
    return {
      profile: name,
      slug: published.slug!,
      url: `${this.gatewayUrl}/v1/chat/default/${published.slug!}`,
      key: key.token!,
      keyId: key.id!,
    }
  }
  async #create(path: string, body: unknown): Promise<Record<string, string>> {
    const reply = await this.api<Record<string, string>>('POST', path, body)
    if (reply.status !== 201) throw new Error(`POST ${path}: ${reply.status} ${JSON.stringify(reply.body)}`)
    return reply.body
  }

  output(): string {
    return [...this.#running, ...this.#others.map((p, i) => [`another ${i + 1}`, p] as const)]
      .map(([role, p]) => `--- ${role}\n${p.output.join('')}`)
      .join('\n')
  }

  #roleOf(part: Part): RoleName {
    return this.form === 'single' ? 'dev' : part
  }
  #started(part: Part): Started {
    return this.#running.get(this.#roleOf(part))!
  }
  #url(part: Part, listener: string): string {
    return this.#started(part).urls[listener]!
  }
  #begin(role: RoleName, env: Record<string, string>): Promise<Started> {
    const begin = this.#apart.has(role) ? spawnRole : bootRole
    return begin(role, { ...this.#env, ...env }, this.#files[role])
  }
  async #launch(role: RoleName, env: Record<string, string>): Promise<Started> {
    const asked: Record<string, string> = { AGENT_ORC_WORKER_PORT: '0', AGENT_ORC_OPERATIONS_PORT: '0', ...env }
    for (const [name, port] of Object.entries(asked)) if (port === '0') asked[name] = await lastingPort()
    const started = await this.#begin(role, asked)
    this.#running.set(role, started)
    const ports: Record<string, string> = {}
    for (const [listener, url] of Object.entries(started.urls)) ports[portVariable(role, listener)] = new URL(url).port
    this.#settings.set(role, { ...asked, ...ports })
    return started
  }
}

/**
 * A free port that systems give to no outgoing connection. A role that is started again would find another one taken, when a test
 * beside this one has connected to something in the meantime.
 */
async function lastingPort(): Promise<string> {
  for (;;) {
    const port = randomInt(10_000, 32_000)
    const server = createServer()
    const isFree = await new Promise<boolean>((resolve) => {
      server.once('error', () => resolve(false))
      server.listen(port, '127.0.0.1', () => resolve(true))
    })
    await new Promise<void>((resolve) => server.close(() => resolve()))
    if (isFree) return String(port)
  }
}

/** Role files in which the death of a conductor is noticed within a few seconds. */
export async function quickLeases(t: Pick<TestContext, 'after'>): Promise<Partial<Record<RoleName, string>>> {
  const folder = await mkdtemp(join(tmpdir(), 'ao-leases-'))
  t.after(() => rm(folder, { recursive: true }))
  const text = await readFile(join(root, 'config/conductor.yaml'), 'utf8')
  const conductor = join(folder, 'conductor.yaml')
  const lease = '    heartbeat: 300ms\n    lease: 2s\n    sweep: 200ms\n'
  await writeFile(conductor, text.replace(/^ {2}runs:\n/m, `$&${lease}`))
  return { conductor }
}

const portVariable = (role: RoleName, listener: string): string =>
  listener === 'workers' || listener === 'operations'
    ? `AGENT_ORC_${listener === 'workers' ? 'WORKER' : 'OPERATIONS'}_PORT`
    : role === 'dev'
      ? `AGENT_ORC_${listener.toUpperCase()}_PORT`
      : listener === 'internal'
        ? 'INTERNAL_PORT'
        : role === 'runner'
          ? 'RUNNER_PORT'
          : 'PORT'

/** Polls until `check` returns something; fails with a sentence after `seconds`. The bound is generous: it only ends a test that would hang. */
export async function eventually<T>(
  what: string,
  check: () => Promise<T | undefined | false>,
  seconds = 30,
): Promise<T> {
  const begun = Date.now()
  for (;;) {
    const value = await check()
    if (value !== undefined && value !== false) return value
    const waitedMs = Date.now() - begun
    if (waitedMs > seconds * 1000) throw new Error(`did not happen within ${seconds} s: ${what}`)
    // Asking takes the processor from what is waited for, so the longer it lasts, the more seldom.
    await new Promise((resolve) => setTimeout(resolve, Math.min(20 + waitedMs / 8, 250)))
  }
}
