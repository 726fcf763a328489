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
import type { Servers } from './servers.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
/** Below the ports that systems hand out: a process that restarts finds its own free. */
const portsPerFleet = 16
const lowestPort = 18_000

interface Member {
  child: ChildProcess | undefined
  readonly env: Record<string, string>
}

/** Two of each role as real processes, each with its own way to PostgreSQL and to Redis. */
export interface Fleet {
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

/** `isReady`: what the balancer knows of a conductor; unless given it asks nobody. */
export async function startFleet(
  servers: Servers,
  model: ModelServer,
  folder: string,
  isReady: (name: Name) => boolean = () => true,
): Promise<Fleet> {
  mkdirSync(folder, { recursive: true })
  const port = lowestPort + (process.pid % 900) * portsPerFleet
  const portOf = (name: Name): number => port + names.indexOf(name)
  const internalOf = (name: Name): number => port + names.length + names.indexOf(name)
  const at = (number: number): string => `http://127.0.0.1:${number}`
  const proxies = new Map<string, Proxy>()
  const instances = new Map<string, Name>()
  for (const name of stateful) {
    const postgres = await startProxy(undefined, servers.dsn)
    // Renewals and registrations name the instance; nobody else's do on this way.
    postgres.inspect((bytes) => {
      if (bytes.includes('-renew') || bytes.includes('-register')) {
        for (const [id] of bytes.toString('latin1').matchAll(/inst_[a-z0-9]{8,}/g)) instances.set(id, name)
      }
      return 'pass'
    })
    proxies.set(`postgres ${name}`, postgres)
    proxies.set(`redis ${name}`, await startProxy(undefined, servers.redisUrl))
  }
  // What stands before the conductors of an installation that has two.
  const conductors = names.filter((name) => name.startsWith('conductor'))
  const balancer: Balancer = await startBalancer(conductors.map(internalOf), (port) =>
    conductors.some((name) => internalOf(name) === port && isReady(name)),
  )
  const apiKey = `bootstrap-${randomBytes(16).toString('hex')}`
  const shared = {
    PATH: process.env['PATH'] ?? '',
    HOME: process.env['HOME'] ?? '',
    AGENT_API_KEY_PEPPER: randomBytes(32).toString('base64'),
    CHAT_GATEWAY_SIGNING_KEY_CURRENT: randomBytes(32).toString('base64'),
    AGENT_ORC_BOOTSTRAP_KEY: apiKey,
    LOG_LEVEL: 'info',
  }
  const environment = (name: Name): Record<string, string> => {
    const [role, number] = name.split('-') as [string, string]
    const own = { ...shared, PORT: String(portOf(name)) }
    const stores = {
      POSTGRES_DSN: proxies.get(`postgres ${name}`)?.url ?? '',
      REDIS_URL: proxies.get(`redis ${name}`)?.url ?? '',
    }
    if (role === 'sidecar') return { ...own, OPENAI_API_KEY: 'stand-in', OPENAI_BASE_URL: model.url }
    if (role === 'runner') {
      const url = at(portOf(name))
      return {
        ...own,
        RUNNER_PORT: own.PORT,
        AGENT_ORC_WORKER_PORT: '0',
        RUNNER_BASE_URL: url,
        SIDECAR_URL: at(portOf(`sidecar-${number}` as Name)),
      }
    }
    if (role === 'conductor') {
      const runners = [at(portOf('runner-1')), at(portOf('runner-2'))].join(',')
      return { ...own, ...stores, INTERNAL_PORT: String(internalOf(name)), RUNNER_URLS: runners }
    }
    return { ...own, ...stores, CONDUCTOR_INTERNAL_URL: balancer.url }
  }
  const members = new Map<Name, Member>(names.map((name) => [name, { child: undefined, env: environment(name) }]))

  const fleet: Fleet = {
    apiKey,
    url: (name) => at(portOf(name)),
    ways: (store, on) => (on === 'all' ? stateful : [on]).map((name) => proxies.get(`${store} ${name}`)!),
    kill: (name, signal) => void members.get(name)!.child?.kill(signal),
    isUp(name) {
      const { child } = members.get(name)!
      return child !== undefined && child.exitCode === null && child.signalCode === null
    },
    async gone(name) {
      if (fleet.isUp(name)) await once(members.get(name)!.child!, 'exit')
    },
    async start(name) {
      const member = members.get(name)!
      const role = name.split('-')[0]!
      const args = ['cli/agent-orc.js', 'start', '--json', '--config', `config/${role}.yaml`]
      const child = spawn(process.execPath, args, { cwd: root, env: member.env, stdio: ['ignore', 'pipe', 'pipe'] })
      member.child = child
      child.stderr.pipe(createWriteStream(join(folder, `${name}.log`), { flags: 'a' }))
      const ready = Promise.withResolvers<void>()
      child.once('exit', (code) => ready.reject(new Error(`${name} ended at its start (${code}): see its log`)))
      createInterface({ input: child.stdout }).once('line', () => ready.resolve())
      await ready.promise
    },
    instancesOf: (name) => [...instances].filter(([, owner]) => owner === name).map(([id]) => id),
    async unready() {
      const asked = await Promise.all(
        names.map(async (name) => {
          const reply = await fetch(`${at(portOf(name))}/readyz`, { signal: AbortSignal.timeout(4_000) }).catch(
            () => {},
          )
          await reply?.body?.cancel()
          return reply?.status === 200 ? [] : [name]
        }),
      )
      return asked.flat()
    },
    async stop() {
      for (const name of names) {
        fleet.kill(name, 'SIGCONT')
        fleet.kill(name, 'SIGTERM')
      }
      const late = sleep(28_000, undefined, { ref: false }).then(() =>
        names.forEach((name) => fleet.kill(name, 'SIGKILL')),
      )
      void late
      await Promise.all(names.map((name) => fleet.gone(name)))
      await balancer.stop()
      await Promise.all([...proxies.values()].map((proxy) => proxy.stop()))
    },
  }
  return fleet
}
