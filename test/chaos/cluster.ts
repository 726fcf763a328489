import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { createWriteStream, mkdirSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { type ModelServer, type Proxy, startProxy } from '#testing'
import { type Balancer, startBalancer } from './balancer.ts'
import { type Name, names, stateful, type Store } from './schedule.ts'
import { command } from '../bench/cluster.ts'
import type { Servers } from './servers.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
/** Below the ports that systems hand out: a process that restarts finds its own free. */
const portsPerCluster = 16
const lowestPort = 18_000
/** Longer than the grace of any role. */
const graceMs = 28_000

/** Two of each role as real processes, each with its own way to PostgreSQL and to Redis. */
export interface Cluster {
  /** The key of the owner of tenant `default`. */
  readonly apiKey: string
  url(name: Name): string
  /** The way of one process, or of all, to a store. */
  ways(store: Store, on: Name | 'all'): readonly Proxy[]
  kill(name: Name, signal: NodeJS.Signals): void
  gone(name: Name): Promise<void>
  isUp(name: Name): boolean
  start(name: Name): Promise<void>
  /** The ids under which a process has claimed runs, as far as they were seen on its way to PostgreSQL. */
  instancesOf(name: Name): readonly string[]
  /** Names of the processes that `/readyz` does not call ready. */
  unready(): Promise<Name[]>
  stop(): Promise<void>
}

/** Instead of those in config/, by their role. */
type RoleFiles = Readonly<Record<string, string>>

interface ClusterOptions {
  /** What the balancer knows of a conductor; unless given it asks nobody. */
  readonly isReady?: (name: Name) => boolean
  readonly files?: RoleFiles
  /** Processes speak TLS with each other, and each shows a certificate. */
  readonly tls?: boolean
}

export async function startCluster(
  servers: Servers,
  model: ModelServer,
  folder: string,
  { isReady = () => true, files = {}, tls = false }: ClusterOptions = {},
): Promise<Cluster> {
  mkdirSync(folder, { recursive: true })
  const port = lowestPort + (process.pid % 900) * portsPerCluster
  const ports = {
    of: (name: Name): number => port + names.indexOf(name),
    /** The internal listener of a conductor; the probes of a runner or sidecar, whose own listener wants proof. */
    secondOf: (name: Name): number => port + names.length + names.indexOf(name),
  }
  const ways = await openWays(servers)
  // A deployment with two conductors has a balancer before them.
  const conductors = names.filter((name) => name.startsWith('conductor'))
  const balancer = await startBalancer(conductors.map(ports.secondOf), (port) =>
    conductors.some((name) => ports.secondOf(name) === port && isReady(name)),
  )
  return new RoleProcesses(folder, ways, balancer, environments(ports, ways, model, balancer, tls), files)
}

/** The ways of the stateful processes to their stores, and whose instances were seen on them. */
interface Ways {
  readonly proxies: ReadonlyMap<`${Store} ${Name}`, Proxy>
  readonly instances: ReadonlyMap<string, Name>
}

async function openWays(servers: Servers): Promise<Ways> {
  const proxies = new Map<`${Store} ${Name}`, Proxy>()
  const instances = new Map<string, Name>()
  for (const name of stateful) {
    const postgres = await startProxy(undefined, servers.dsn)
    // Renewals and registrations name the instance, and nobody else's pass here.
    postgres.inspect((bytes) => {
      if (bytes.includes('-renew') || bytes.includes('-register')) {
        for (const [id] of bytes.toString('latin1').matchAll(/inst_[a-z0-9]{8,}/g)) instances.set(id, name)
      }
      return 'pass'
    })
    proxies.set(`postgres ${name}`, postgres)
    proxies.set(`redis ${name}`, await startProxy(undefined, servers.redisUrl))
  }
  return { proxies, instances }
}

/** Of one that serves as client and server, for 127.0.0.1. */
const certificates = {
  AGENT_ORC_TLS_CERT: join(root, 'test/certificates/server.pem'),
  AGENT_ORC_TLS_KEY: join(root, 'test/certificates/server.key'),
  AGENT_ORC_TLS_CA: join(root, 'test/certificates/ca.pem'),
  AGENT_ORC_TLS_CLIENT_CERTS: 'true',
}

type Ports = Readonly<Record<'of' | 'secondOf', (name: Name) => number>>
type Environment = Readonly<Record<string, string>>

/** The variables of each process. */
function environments(ports: Ports, { proxies }: Ways, model: ModelServer, balancer: Balancer, tls: boolean) {
  const shared = {
    PATH: process.env['PATH'] ?? '',
    HOME: process.env['HOME'] ?? '',
    AGENT_API_KEY_PEPPER: randomBytes(32).toString('base64'),
    CHAT_GATEWAY_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64'),
    AGENT_ORC_BOOTSTRAP_KEY: `bootstrap-${randomBytes(16).toString('hex')}`,
    LOG_LEVEL: 'info',
    ...(tls ? certificates : {}),
  }
  // As in production, nobody without this key is answered by a runner or a sidecar; gateways have none.
  const inner = { RUNNER_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64') }
  const secured = (url: string): string => (tls ? url.replace('http:', 'https:') : url)
  const urlOf = (name: Name): string => secured(at(ports.of(name)))
  const environment = (name: Name): Environment => {
    const [role, number] = name.split('-') as [string, string]
    const own = { ...shared, PORT: String(ports.of(name)), AGENT_ORC_OPERATIONS_PORT: '0' }
    const stores = {
      POSTGRES_DSN: proxies.get(`postgres ${name}`)?.url ?? '',
      REDIS_URL: proxies.get(`redis ${name}`)?.url ?? '',
    }
    const probed = { ...own, ...inner, HEALTH_PORT: String(ports.secondOf(name)) }
    if (role === 'sidecar') return { ...probed, OPENAI_API_KEY: 'stand-in', OPENAI_BASE_URL: model.url }
    if (role === 'runner') {
      return {
        ...probed,
        RUNNER_PORT: own.PORT,
        AGENT_ORC_WORKER_PORT: '0',
        RUNNER_BASE_URL: urlOf(name),
        SIDECAR_URL: urlOf(`sidecar-${number}` as Name),
      }
    }
    if (role === 'conductor') {
      const runners = [urlOf('runner-1'), urlOf('runner-2')].join(',')
      return { ...own, ...inner, ...stores, INTERNAL_PORT: String(ports.secondOf(name)), RUNNER_URLS: runners }
    }
    return { ...own, ...stores, CONDUCTOR_INTERNAL_URL: secured(balancer.url) }
  }
  return new Map(names.map((name) => [name, environment(name)]))
}

const at = (port: number | string): string => `http://127.0.0.1:${port}`

class RoleProcesses implements Cluster {
  readonly apiKey: string
  readonly #folder: string
  readonly #ways: Ways
  readonly #balancer: Balancer
  readonly #environments: ReadonlyMap<Name, Environment>
  readonly #files: RoleFiles
  readonly #children = new Map<Name, ChildProcess>()

  constructor(
    folder: string,
    ways: Ways,
    balancer: Balancer,
    environments: ReadonlyMap<Name, Environment>,
    files: RoleFiles,
  ) {
    this.apiKey = environments.get('conductor-1')!['AGENT_ORC_BOOTSTRAP_KEY']!
    this.#folder = folder
    this.#ways = ways
    this.#balancer = balancer
    this.#environments = environments
    this.#files = files
  }

  url(name: Name): string {
    return at(this.#environments.get(name)!['PORT']!)
  }
  #probes(name: Name): string {
    const { HEALTH_PORT } = this.#environments.get(name)!
    return HEALTH_PORT === undefined ? this.url(name) : at(HEALTH_PORT)
  }
  ways(store: Store, on: Name | 'all'): readonly Proxy[] {
    return (on === 'all' ? stateful : [on]).map((name) => this.#ways.proxies.get(`${store} ${name}`)!)
  }
  instancesOf(name: Name): readonly string[] {
    return [...this.#ways.instances].filter(([, owner]) => owner === name).map(([id]) => id)
  }

  async start(name: Name): Promise<void> {
    const role = name.split('-')[0]!
    const args = [...command('start', root), '--json', '--config', this.#files[role] ?? `config/${role}.yaml`]
    const env = this.#environments.get(name)
    const child = spawn(process.execPath, args, { cwd: root, env, stdio: ['ignore', 'pipe', 'pipe'] })
    this.#children.set(name, child)
    child.stderr.pipe(createWriteStream(join(this.#folder, `${name}.log`), { flags: 'a' }))
    const ready = Promise.withResolvers<void>()
    child.once('exit', (code) => ready.reject(new Error(`${name} ended at its start (${code}): see its log`)))
    createInterface({ input: child.stdout }).once('line', () => ready.resolve())
    await ready.promise
  }
  kill(name: Name, signal: NodeJS.Signals): void {
    this.#children.get(name)?.kill(signal)
  }
  isUp(name: Name): boolean {
    const child = this.#children.get(name)
    return child !== undefined && child.exitCode === null && child.signalCode === null
  }
  async gone(name: Name): Promise<void> {
    if (this.isUp(name)) await once(this.#children.get(name)!, 'exit')
  }

  async unready(): Promise<Name[]> {
    const asked = await Promise.all(names.map(async (name) => ((await isReady(this.#probes(name))) ? [] : [name])))
    return asked.flat()
  }

  async stop(): Promise<void> {
    for (const name of names) {
      this.kill(name, 'SIGCONT')
      this.kill(name, 'SIGTERM')
    }
    void sleep(graceMs, undefined, { ref: false }).then(() => names.forEach((name) => this.kill(name, 'SIGKILL')))
    await Promise.all(names.map((name) => this.gone(name)))
    await this.#balancer.stop()
    await Promise.all([...this.#ways.proxies.values()].map((proxy) => proxy.stop()))
  }
}

async function isReady(url: string): Promise<boolean> {
  const reply = await fetch(`${url}/readyz`, { signal: AbortSignal.timeout(4_000) }).catch(() => undefined)
  await reply?.body?.cancel()
  return reply?.status === 200
}
